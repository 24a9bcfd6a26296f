"""spec.tuning of a model, over whole passes: the job it makes, what comes of it, and when it is done again."""

import asyncio
import json
from typing import Any

import pytest

from gpulet.api.policy import Policy
from gpulet.api.workload import ServeReport
from tests.controller.cluster import Cluster, given_profile, inference_model, of_nodes
from tests.controller.passes import POLICY, condition, one_pass, report

WITH_OUTPUT = POLICY.model_copy(
    update={"tuning": POLICY.tuning.model_copy(update={"output": "pvc://store/tuned"})},
)
FILE, OTHER_FILE = "sha256:a", "sha256:b"
TUNING = {"trials": 8, "output": {"uri": "pvc://store/m"}}


@pytest.fixture
def cluster() -> Cluster:
    made = of_nodes(2)
    made.add(given_profile("p"))
    return made


def settle(cluster: Cluster, *, passes: int = 4, policy: Policy = POLICY) -> None:
    for _ in range(passes):
        asyncio.run(one_pass(cluster, policy=policy))
        cluster.kubelet()


def tuned_model(cluster: Cluster, tuning: dict[str, Any], **spec: Any) -> dict[str, Any]:
    wanted = {"profileRef": {"name": "p"}, "tuning": tuning} | spec
    return cluster.add(inference_model("m", rate=5, slo_ms=300, **wanted))


def jobs(cluster: Cluster) -> list[str]:
    return sorted(name for _, name in cluster.objects["TuningJob"])


def job(cluster: Cluster, name: str = "m-tuning") -> dict[str, Any]:
    return cluster.objects["TuningJob"]["vision", name]


def finish(
    cluster: Cluster, name: str = "m-tuning", *, adopted: bool = True, error: dict[str, str] | None = None
) -> None:
    """The clients end, the merge gives its verdict."""
    settle(cluster)
    cluster.objects["Job"]["vision", f"{name}-clients"]["status"] = {"completionTime": "2026-12-01T12:01:00Z"}
    settle(cluster)
    merge = next(
        key
        for key, g in cluster.objects["Gpulet"].items()
        if g["spec"].get("tuning", {}).get("role") == "merge" and g["spec"]["tuning"]["job"] == name
    )
    verdict: dict[str, Any] = {"digest": "sha256:1", "path": "tuned.so", "adopted": adopted}
    verdict |= {"beforeMilliseconds": 10.0, "afterMilliseconds": 4.0, "modelDigest": FILE}
    cluster.end_pod(merge, "merge", json.dumps(error or verdict), code=1 if error else 0)
    settle(cluster)


def measure_all(cluster: Cluster) -> None:
    """Probers report until nothing is left to measure."""
    for _ in range(4):
        settle(cluster, passes=2)
        for key, gpulet in list(cluster.objects["Gpulet"].items()):
            if "profiling" in gpulet["spec"] and key in cluster.objects["Pod"]:
                cluster.end_pod(key, "prober", report(gpulet["spec"]["computePercent"]))
    settle(cluster)


def lies_there(cluster: Cluster, digest: str) -> None:
    """What the serving pods report of the file at the model's URI."""
    cluster.reports.clear()
    for key, gpulet in cluster.objects["Gpulet"].items():
        if "models" in gpulet["spec"]:
            model = {"name": "m", "digest": "sha256:served", "sourceDigest": digest, "ready": True}
            report_ = {"models": [model], "runtime": "triton", "runtimeVersion": "2.51.0"}
            cluster.reports[key] = ServeReport.model_validate(report_)


def _ask(model: dict[str, Any], *, slo_ms: float, rate: float = 2) -> None:
    model["spec"]["slo"]["latencyMilliseconds"] = slo_ms
    model["spec"]["load"]["requestsPerSecond"] = rate


def planned_percent(cluster: Cluster) -> int:
    (served,) = [g for g in cluster.objects["Gpulet"].values() if "models" in g["spec"]]
    return int(served["spec"]["computePercent"])


def test_a_model_that_asks_for_tuning_gets_a_job_of_its_own_and_serves_what_comes_of_it(cluster: Cluster) -> None:
    model = tuned_model(cluster, TUNING)
    settle(cluster)
    made = job(cluster)
    assert made["spec"]["modelRef"] == {"name": "m"} and made["spec"]["trials"] == 8
    assert made["spec"]["output"] == {"uri": "pvc://store/m"}
    (owner,) = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("InferenceModel", model["metadata"]["uid"], True)
    tuned = condition(model, "Tuned")
    assert (tuned["status"], tuned["reason"]) == ("Unknown", "Searching") and "m-tuning" in tuned["message"]
    assert condition(model, "Ready")["status"] == "True", "it serves while it is tuned"
    finish(cluster)
    assert (condition(model, "Tuned")["status"], condition(model, "Tuned")["reason"]) == ("True", "Adopted")
    measure_all(cluster)
    (served,) = [g for g in cluster.objects["Gpulet"].values() if "models" in g["spec"]]
    assert served["spec"]["models"][0]["artifact"] == "pvc://store/m/tuned.so"
    assert model["status"]["servingFormat"] == "tvm" and model["status"]["tuningJob"] == "m-tuning"


def test_without_an_output_of_its_own_the_policy_s_folder_is_used(cluster: Cluster) -> None:
    tuned_model(cluster, {"trials": 8})
    settle(cluster, policy=WITH_OUTPUT)
    assert job(cluster)["spec"]["output"] == {"uri": "pvc://store/tuned/vision/m"}


def test_without_any_output_the_model_says_what_to_give_and_serves(cluster: Cluster) -> None:
    model = tuned_model(cluster, {"trials": 8})
    settle(cluster)
    assert jobs(cluster) == []
    tuned = condition(model, "Tuned")
    assert (tuned["status"], tuned["reason"]) == ("False", "NoOutput")
    assert "spec.tuning.output" in tuned["message"] and "tuning.output in ConfigMap gpulet-policy" in tuned["message"]
    assert condition(model, "Ready")["status"] == "True"
    assert condition(model, "Stalled")["status"] == "False"
    settle(cluster, policy=WITH_OUTPUT)
    assert jobs(cluster) == ["m-tuning"]


def test_nothing_moves_while_the_share_stays(cluster: Cluster) -> None:
    """Failure case C5: neither while the job runs nor after it."""
    tuned_model(cluster, TUNING)
    settle(cluster)
    cluster.writes.clear()
    settle(cluster, passes=2)
    assert cluster.writes == []
    finish(cluster, adopted=False)
    cluster.writes.clear()
    settle(cluster)
    assert cluster.writes == [] and jobs(cluster) == ["m-tuning"]


def test_a_job_is_made_again_only_when_the_share_has_moved_by_more_than_half(cluster: Cluster) -> None:
    model = tuned_model(cluster, TUNING)
    _ask(model, slo_ms=40)
    finish(cluster, adopted=False)
    assert planned_percent(cluster) == 40
    _ask(model, slo_ms=16)
    settle(cluster, passes=8)
    assert planned_percent(cluster) == 60 and jobs(cluster) == ["m-tuning"]
    _ask(model, slo_ms=10.9)
    settle(cluster, passes=8)
    assert planned_percent(cluster) == 80 and jobs(cluster) == ["m-tuning-2"]
    again = job(cluster, "m-tuning-2")
    assert again["spec"]["output"] == {"uri": "pvc://store/m/2"}, "it must not overwrite what may be served"
    assert again["status"]["computePercent"] == 80
    finish(cluster, "m-tuning-2", adopted=False)
    settle(cluster)
    assert jobs(cluster) == ["m-tuning-2"]
    _ask(model, slo_ms=300)
    cluster.objects["Gpulet"].clear()  # what exists is kept while it is good enough
    cluster._collect_garbage()
    settle(cluster, passes=8)
    assert planned_percent(cluster) == 20 and jobs(cluster) == ["m-tuning-3"], "either way"


def test_the_job_whose_result_is_served_stays_when_another_one_did_not_win(cluster: Cluster) -> None:
    model = tuned_model(cluster, TUNING)
    _ask(model, slo_ms=40)
    finish(cluster)
    measure_all(cluster)
    assert model["status"]["tuningJob"] == "m-tuning"
    _ask(model, slo_ms=20)
    settle(cluster, passes=8)
    assert planned_percent(cluster) > 1.5 * job(cluster)["status"]["computePercent"]
    finish(cluster, "m-tuning-2", adopted=False)
    assert jobs(cluster) == ["m-tuning", "m-tuning-2"]
    assert model["status"]["tuningJob"] == "m-tuning"


def test_a_job_that_failed_is_not_tried_for_ever(cluster: Cluster) -> None:
    model = tuned_model(cluster, TUNING)
    finish(cluster, error={"error": "the tuned output differs", "reason": "OutputDiffers"})
    tuned = condition(model, "Tuned")
    assert (tuned["status"], tuned["reason"]) == ("False", "OutputDiffers")
    assert "delete that TuningJob to have it tried again" in tuned["message"]
    assert condition(model, "Ready")["status"] == "True"
    cluster.writes.clear()
    settle(cluster)
    assert cluster.writes == []
    del cluster.objects["TuningJob"]["vision", "m-tuning"]
    settle(cluster)
    assert job(cluster)["status"]["phase"] == "Searching"


def test_another_model_file_is_tuned_anew_and_the_search_for_the_old_one_ends(cluster: Cluster) -> None:
    model = tuned_model(cluster, TUNING)
    settle(cluster)
    model["spec"]["model"]["uri"] = "configmap://m/other.onnx"
    settle(cluster, passes=8)
    assert jobs(cluster) == ["m-tuning-2"]
    assert not [g for g in cluster.objects["Gpulet"].values() if g["spec"].get("tuning", {}).get("job") == "m-tuning"]


def test_without_spec_tuning_the_search_ends_and_what_was_won_stays(cluster: Cluster) -> None:
    model = tuned_model(cluster, TUNING)
    settle(cluster)
    wish = model["spec"].pop("tuning")
    settle(cluster)
    assert jobs(cluster) == []
    assert all("models" in g["spec"] for g in cluster.objects["Gpulet"].values())
    assert all(c["type"] != "Tuned" for c in model["status"]["conditions"])
    model["spec"]["tuning"] = wish
    finish(cluster)
    del model["spec"]["tuning"]
    measure_all(cluster)
    assert jobs(cluster) == ["m-tuning"] and model["status"]["servingFormat"] == "tvm"


def test_a_job_of_that_name_that_is_the_user_s_own_is_left_alone_and_said(cluster: Cluster) -> None:
    own = cluster.add(
        {
            "apiVersion": "gpulet.dev/v1alpha1",
            "kind": "TuningJob",
            "metadata": {"name": "m-tuning", "namespace": "vision"},
            "spec": {"modelRef": {"name": "m"}, "trials": 99, "suspend": True, "output": {"uri": "pvc://mine/m"}},
        }
    )
    model = tuned_model(cluster, TUNING)
    settle(cluster)
    tuned = condition(model, "Tuned")
    assert (tuned["status"], tuned["reason"]) == ("False", "NameTaken")
    assert "TuningJob m-tuning" in tuned["message"] and "rename it" in tuned["message"]
    del model["spec"]["tuning"]
    settle(cluster)
    assert jobs(cluster) == ["m-tuning"] and own["spec"]["trials"] == 99
    assert "ownerReferences" not in own["metadata"]


def test_the_longest_names_make_a_name_that_is_allowed(cluster: Cluster) -> None:
    names = ["m" * 49 + letter for letter in "ab"]
    for name in names:
        cluster.add(inference_model(name, rate=2, slo_ms=300, profileRef={"name": "p"}, tuning=TUNING))
    settle(cluster, passes=2)
    made = jobs(cluster)
    assert len(set(made)) == 2 and all(len(f"{name}-10") <= 50 for name in made)


def test_a_file_that_is_replaced_behind_its_uri_is_served_itself_and_tuned_anew(cluster: Cluster) -> None:
    """The artifact of the file before must not go on answering for it."""
    model = tuned_model(cluster, TUNING)
    settle(cluster)
    lies_there(cluster, FILE)
    finish(cluster)
    measure_all(cluster)
    assert model["status"]["servingFormat"] == "tvm" and model["status"]["sourceDigest"] == FILE
    (served,) = [
        p for p in cluster.objects["Pod"].values() if p["metadata"]["labels"].get("gpulet.dev/role") == "serve"
    ]
    mounts = {m["mountPath"] for m in served["spec"]["containers"][0]["volumeMounts"]}
    assert {"/run/gpulet/models/m", "/run/gpulet/source/m"} <= mounts, "it can see the model's own file"
    lies_there(cluster, OTHER_FILE)
    settle(cluster, passes=8)
    assert model["status"]["servingFormat"] == "onnx" and model["status"]["sourceDigest"] == OTHER_FILE
    assert jobs(cluster) == ["m-tuning-2"], "what was won with the other file is worth nothing"
    cluster.reports.clear()
    settle(cluster)
    assert model["status"]["servingFormat"] == "onnx", "it is remembered while nobody can be asked"


def test_a_file_that_is_put_back_is_served_tuned_again(cluster: Cluster) -> None:
    """With a job that its user wrote, which stays."""
    model = tuned_model(cluster, TUNING)
    finish(cluster)
    del model["spec"]["tuning"]
    measure_all(cluster)
    assert model["status"]["servingFormat"] == "tvm"
    for digest, served in ((FILE, "tvm"), (OTHER_FILE, "onnx"), (FILE, "tvm")):
        lies_there(cluster, digest)
        settle(cluster, passes=8)
        assert model["status"]["servingFormat"] == served
