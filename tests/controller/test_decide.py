"""Whole passes over a cluster in memory: from an applied model to a world at rest, and back to nothing."""

import asyncio
import json

from gpulet.model.demand import ModelId
from tests.controller.cluster import A100, Cluster, given_profile, inference_model, node, whole_gpu_slice
from tests.controller.passes import POLICY, condition, one_pass, report, rolling, serving_pods, settle


def test_a_model_with_a_profile_is_placed_served_and_ready(cluster: Cluster) -> None:
    cluster.add(given_profile("p"))
    model = cluster.add(inference_model("m", rate=10, slo_ms=200, profileRef={"name": "p"}))
    settle(cluster)
    assert condition(model, "Ready")["status"] == "True"
    assert condition(model, "ObjectiveMet")["reason"] == "TooFewRequests"
    (gpulet,) = cluster.objects["Gpulet"]
    assert gpulet in cluster.objects["ResourceClaim"] and gpulet in cluster.objects["Pod"]
    assert ("vision", "m") in cluster.objects["Service"]


def test_a_planned_world_is_at_rest(cluster: Cluster) -> None:
    """Failure case C5, M5: a second, identical pass writes nothing."""
    cluster.add(given_profile("p"))
    for i in range(3):
        cluster.add(inference_model(f"m{i}", rate=5 + i, slo_ms=300, profileRef={"name": "p"}))
    settle(cluster)
    cluster.writes.clear()
    settle(cluster, passes=2)
    assert cluster.writes == []


def test_models_share_one_gpu_where_they_fit(cluster: Cluster) -> None:
    cluster.add(given_profile("p"))
    for i in range(3):
        cluster.add(inference_model(f"m{i}", rate=5, slo_ms=300, profileRef={"name": "p"}))
    settle(cluster)
    assert len({g["spec"]["device"]["gpu"] for g in cluster.objects["Gpulet"].values()}) == 1


def test_a_bad_model_says_so_and_stops_nobody(cluster: Cluster) -> None:
    cluster.add(given_profile("p"))
    good = cluster.add(inference_model("good", rate=5, slo_ms=300, profileRef={"name": "p"}))
    hopeless = cluster.add(inference_model("hopeless", rate=5, slo_ms=0.5, profileRef={"name": "p"}))
    lost = cluster.add(inference_model("lost", rate=5, slo_ms=300, profileRef={"name": "nowhere"}))
    unreadable = inference_model("unreadable", rate=5, slo_ms=300)
    unreadable["spec"]["slo"] = {"latencyMilliseconds": "soon"}
    cluster.add(unreadable)
    settle(cluster)
    assert condition(good, "Ready")["status"] == "True"
    assert condition(hopeless, "Planned")["reason"] == "ObjectiveInfeasible"
    assert condition(hopeless, "Stalled")["status"] == "True"
    assert condition(lost, "Profiled")["reason"] == "ProfileNotFound"
    assert "nowhere" in condition(lost, "Profiled")["message"]
    assert condition(unreadable, "Ready")["reason"] == "InvalidSpec"
    assert "latencyMilliseconds" in condition(unreadable, "Stalled")["message"]


def test_a_model_without_a_profile_is_measured_and_then_placed(cluster: Cluster) -> None:
    model = cluster.add(inference_model("m", rate=5, slo_ms=300))
    settle(cluster, passes=2)
    (profile,) = cluster.objects["ModelProfile"].values()
    for _ in range(4):
        settle(cluster, passes=2)
        for key, gpulet in list(cluster.objects["Gpulet"].items()):
            if "profiling" in gpulet["spec"] and key in cluster.objects["Pod"]:
                cluster.end_pod(key, "prober", report(gpulet["spec"]["computePercent"]))
    settle(cluster)
    assert profile["status"]["measured"] == 4
    assert condition(profile, "Measured")["status"] == "True"
    assert condition(model, "Ready")["status"] == "True"
    assert all("profiling" not in g["spec"] for g in cluster.objects["Gpulet"].values())


def test_every_product_that_a_model_may_run_on_is_measured(cluster: Cluster) -> None:
    """The first one measured is enough to serve; the others follow, each in a profile of its own."""
    cluster.add(node("node3"))
    cluster.add(whole_gpu_slice("node3", 0, product="NVIDIA-H100-80GB-HBM3"))
    cluster.add(inference_model("m", rate=10, slo_ms=200))
    cluster.add(inference_model("choosy", rate=10, slo_ms=200, products=["NVIDIA-H100-80GB-HBM3"]))
    settle(cluster, passes=1)
    products = {key[1]: p["spec"]["measure"]["product"] for key, p in cluster.objects["ModelProfile"].items()}
    assert sorted(products.values()) == [A100, "NVIDIA-H100-80GB-HBM3", "NVIDIA-H100-80GB-HBM3"]
    assert [p for name, p in products.items() if name.startswith("choosy-")] == ["NVIDIA-H100-80GB-HBM3"]


def test_a_product_that_nobody_has_is_said_and_not_measured(cluster: Cluster) -> None:
    model = cluster.add(inference_model("m", rate=10, slo_ms=200, products=["NVIDIA-B200"]))
    lonely = given_profile("lonely")
    lonely["spec"] = {
        "model": {"uri": "configmap://m/model.onnx", "format": "onnx"},
        "measure": {"product": "NVIDIA-B200", "computePercents": [50], "batches": [1]},
    }
    cluster.add(lonely)
    settle(cluster, passes=2)
    profiled = condition(model, "Profiled")
    assert profiled["reason"] == "NoDevice"
    assert "has no NVIDIA-B200" in profiled["message"] and A100 in profiled["message"]
    assert set(cluster.objects["ModelProfile"]) == {("vision", "lonely")}
    measured = condition(lonely, "Measured")
    assert measured["reason"] == "NoRoomToProfile" and f"no NVIDIA-B200; it has {A100}" in measured["message"]


def test_a_profile_that_asks_for_more_memory_than_any_device_has_says_so(cluster: Cluster) -> None:
    profile = given_profile("large")
    profile["spec"] = {
        "model": {"uri": "configmap://m/model.onnx", "format": "onnx"},
        "measure": {"computePercents": [50], "batches": [1]},
    }
    cluster.add(profile)
    policy = POLICY.model_copy(update={"profiling": POLICY.profiling.model_copy(update={"memory_mebibytes": 100_000})})
    asyncio.run(one_pass(cluster, policy=policy))
    assert "asks for 100000 MiB" in condition(profile, "Measured")["message"]


def test_a_model_whose_file_is_broken_stalls_with_the_runtime_s_words(cluster: Cluster) -> None:
    model = cluster.add(inference_model("m", rate=5, slo_ms=300))
    settle(cluster, passes=3)
    key = next(iter(cluster.objects["Pod"]))
    error = json.dumps(
        {"models": [], "runtime": "", "runtimeVersion": "", "error": "model.onnx of model m is broken: not ONNX"}
    )
    cluster.objects["Pod"][key]["status"] = {
        "phase": "Pending",
        "initContainerStatuses": [{"name": "server", "state": {"terminated": {"exitCode": 1, "message": error}}}],
    }
    settle(cluster, passes=3)
    assert condition(model, "Profiled")["reason"] == "ProfilingFailed"
    assert "is broken" in condition(model, "Profiled")["message"]
    assert condition(model, "Stalled")["status"] == "True"


def test_a_tuning_job_goes_from_search_to_an_adopted_artifact_that_is_served(cluster: Cluster) -> None:
    cluster.add(given_profile("p"))
    model = cluster.add(inference_model("m", rate=5, slo_ms=300, profileRef={"name": "p"}))
    job = cluster.add(
        {
            "apiVersion": "gpulet.dev/v1alpha1",
            "kind": "TuningJob",
            "metadata": {"name": "j", "namespace": "vision"},
            "spec": {"modelRef": {"name": "m"}, "trials": 8, "output": {"uri": "pvc://store/m"}},
        }
    )
    settle(cluster)
    assert job["status"]["phase"] == "Searching"
    serving_gpu = next(g["spec"]["device"]["gpu"] for g in cluster.objects["Gpulet"].values() if "models" in g["spec"])
    tuning_gpu = next(g["spec"]["device"]["gpu"] for g in cluster.objects["Gpulet"].values() if "tuning" in g["spec"])
    assert serving_gpu != tuning_gpu
    cluster.objects["Job"]["vision", "j-clients"]["status"] = {"completionTime": "2026-12-01T12:01:00Z"}
    settle(cluster, passes=3)
    assert job["status"]["phase"] == "Merging"
    merge = next(k for k, g in cluster.objects["Gpulet"].items() if g["spec"].get("tuning", {}).get("role") == "merge")
    verdict = {
        "digest": "sha256:1",
        "path": "tuned.so",
        "adopted": True,
        "beforeMilliseconds": 10.0,
        "afterMilliseconds": 4.0,
    }
    cluster.end_pod(merge, "merge", json.dumps(verdict))
    settle(cluster, passes=3)
    assert condition(job, "Succeeded")["status"] == "True"
    assert job["status"]["adopted"] is True
    assert job["status"]["artifact"]["uri"] == "pvc://store/m/tuned.so"
    assert not cluster.objects["Job"] and ("vision", "j-tracker") not in cluster.objects["Pod"]
    for _ in range(4):
        settle(cluster, passes=2)
        for key, gpulet in list(cluster.objects["Gpulet"].items()):
            if "profiling" in gpulet["spec"] and key in cluster.objects["Pod"]:
                cluster.end_pod(key, "prober", report(gpulet["spec"]["computePercent"]))
    settle(cluster)
    (served,) = [g for g in cluster.objects["Gpulet"].values() if "models" in g["spec"]]
    assert served["spec"]["models"][0]["artifact"] == "pvc://store/m/tuned.so"
    assert model["status"]["servingFormat"] == "tvm"
    assert condition(model, "Ready")["status"] == "True"


def test_a_job_that_ends_leaves_a_pod_of_that_name_that_is_not_its_own(cluster: Cluster) -> None:
    own = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "j-tracker", "namespace": "vision"}}
    cluster.add(own | {"spec": {"containers": []}})
    job = cluster.add(
        {
            "apiVersion": "gpulet.dev/v1alpha1",
            "kind": "TuningJob",
            "metadata": {"name": "j", "namespace": "vision"},
            "spec": {"model": {"uri": "configmap://m/m.plan", "format": "tensorrt"}, "output": {"uri": "pvc://s/m"}},
        }
    )
    settle(cluster, passes=3)
    assert condition(job, "Succeeded")["status"] == "False"
    assert ("vision", "j-tracker") in cluster.objects["Pod"]


def test_a_format_that_cannot_be_tuned_fails_with_a_remedy(cluster: Cluster) -> None:
    job = cluster.add(
        {
            "apiVersion": "gpulet.dev/v1alpha1",
            "kind": "TuningJob",
            "metadata": {"name": "j", "namespace": "vision"},
            "spec": {
                "model": {"uri": "configmap://m/model.plan", "format": "tensorrt"},
                "output": {"uri": "pvc://store/m"},
            },
        }
    )
    settle(cluster, passes=2)
    assert condition(job, "Succeeded")["reason"] == "NotTunable"
    assert "ONNX" in condition(job, "Succeeded")["message"]


def test_a_deleted_model_takes_everything_with_it(cluster: Cluster) -> None:
    cluster.add(given_profile("p"))
    cluster.add(inference_model("m", rate=5, slo_ms=300, profileRef={"name": "p"}))
    settle(cluster)
    del cluster.objects["InferenceModel"]["vision", "m"]
    for _ in range(3):
        cluster._collect_garbage()
    settle(cluster)
    for kind in ("Gpulet", "Pod", "ResourceClaim", "Service"):
        assert not cluster.objects[kind], kind


def test_a_replacement_comes_up_on_another_gpu_before_the_old_one_goes(cluster: Cluster) -> None:
    """Make before break, where the old share's own GPU has no room for both."""
    cluster.add(given_profile("p"))
    cluster.add(inference_model("m", rate=40, slo_ms=60, profileRef={"name": "p"}))
    settle(cluster)
    (old,) = cluster.objects["Gpulet"].values()
    assert old["spec"]["computePercent"] > 50
    cluster.objects["InferenceModel"]["vision", "m"]["spec"]["model"]["uri"] = "configmap://m/other.onnx"
    gaps = 0
    for _ in range(12):
        asyncio.run(one_pass(cluster))
        ready = [p for p in cluster.objects["Pod"].values() if p.get("status", {}).get("conditions")]
        gaps += not ready
        cluster.kubelet()
    assert gaps == 0
    assert not any(e.reason == "BreakBeforeMake" for e in cluster.events)
    (new,) = cluster.objects["Gpulet"].values()
    assert new["metadata"]["name"] != old["metadata"]["name"]
    cluster.writes.clear()
    settle(cluster, passes=2)
    assert cluster.writes == []


def test_without_other_room_the_old_one_goes_first_and_an_event_says_so() -> None:
    cluster = Cluster()
    cluster.add(node("node1"))
    cluster.add(whole_gpu_slice("node1", 0))
    cluster.add(given_profile("p"))
    model = cluster.add(inference_model("m", rate=40, slo_ms=60, profileRef={"name": "p"}))
    settle(cluster)
    cluster.objects["InferenceModel"]["vision", "m"]["spec"]["model"]["uri"] = "configmap://m/other.onnx"
    settle(cluster)
    assert [e.reason for e in cluster.events] == ["BreakBeforeMake"]
    assert condition(model, "Ready")["status"] == "True"
    assert len(cluster.objects["Gpulet"]) == 1


def test_a_quota_s_words_are_in_the_status_of_the_model_it_refuses(cluster: Cluster) -> None:
    cluster.add(given_profile("p"))
    refused = cluster.add(inference_model("refused", rate=5, slo_ms=300, profileRef={"name": "p"}))
    good = cluster.add(inference_model("good", namespace="other", rate=5, slo_ms=300, profileRef={"name": "p"}))
    cluster.add(given_profile("p", namespace="other"))
    cluster.refusals = [(ModelId("vision", "refused"), "pods is forbidden: exceeded quota: none")]
    settle(cluster)
    assert condition(refused, "Planned")["status"] == "False"
    assert "exceeded quota" in condition(refused, "Planned")["message"]
    assert condition(good, "Ready")["status"] == "True"


def test_a_quota_that_admits_nothing_more_takes_nothing_away(cluster: Cluster) -> None:
    """A model that serves keeps its share in the plan, even where another would like to have it."""
    cluster.add(given_profile("p"))
    model = cluster.add(inference_model("m", rate=80, slo_ms=100, profileRef={"name": "p"}))
    settle(cluster)
    before = {key: g["spec"] for key, g in cluster.objects["Gpulet"].items()}
    assert len(before) == 1
    cluster.refusals = [(ModelId("vision", "m"), "exceeded quota: shares, used: 1, limited: 1")]
    model["spec"]["load"]["requestsPerSecond"] = 300
    for i in range(2):
        cluster.add(inference_model(f"other{i}", rate=80, slo_ms=100, profileRef={"name": "p"}))
    settle(cluster)
    assert {key: g["spec"] for key, g in cluster.objects["Gpulet"].items() if key in before} == before
    planned = condition(model, "Planned")
    assert planned["status"] == "False" and "exceeded quota" in planned["message"]


def test_a_service_name_that_is_taken_is_said_in_the_model_s_status(cluster: Cluster) -> None:
    cluster.add(given_profile("p"))
    model = cluster.add(inference_model("m", rate=10, slo_ms=200, profileRef={"name": "p"}))
    cluster.names_taken = {("vision", "m"): "Service m is somebody else's: rename it"}
    settle(cluster)
    serving = condition(model, "Serving")
    assert (serving["status"], serving["reason"]) == ("False", "NameTaken")
    assert condition(model, "Stalled")["status"] == "True"
    cluster.names_taken = {}
    settle(cluster, passes=1)
    assert condition(model, "Ready")["status"] == "True"


def test_a_manual_gpulet_without_labels_of_ours_stops_nobody(cluster: Cluster) -> None:
    """The repository's own examples/gpulet.yaml beside a model of that name."""
    cluster.add(given_profile("p"))
    model = cluster.add(inference_model("m", rate=5, slo_ms=300, profileRef={"name": "p"}))
    cluster.add(
        {
            "apiVersion": "gpulet.dev/v1alpha1",
            "kind": "Gpulet",
            "metadata": {"name": "reserved", "namespace": "vision", "labels": {"gpulet.dev/origin": "manual"}},
            "spec": {
                "device": {"node": "node2", "gpu": "GPU-node2-0"},
                "computePercent": 50,
                "memory": "1Gi",
                "clients": 1,
                "models": [{"name": "m", "batch": 1}],
            },
        }
    )
    settle(cluster)
    assert condition(model, "Ready")["status"] == "True"
    assert ("vision", "reserved") in cluster.objects["Gpulet"]


def test_a_new_generation_is_not_ready_while_only_the_old_one_serves(cluster: Cluster) -> None:
    """Failure case H2, from the very pass that first sees it."""
    cluster.add(given_profile("p"))
    model = cluster.add(inference_model("m", rate=5, slo_ms=300, profileRef={"name": "p"}))
    settle(cluster)
    assert condition(model, "Ready")["status"] == "True"
    model["spec"]["model"]["uri"] = "configmap://m/other.onnx"
    model["metadata"]["generation"] = 2
    asyncio.run(one_pass(cluster))
    assert model["status"]["observedGeneration"] == 2
    assert condition(model, "Ready")["status"] == "False"
    assert model["status"]["replicas"] == {"planned": 1, "ready": 0}
    settle(cluster)
    assert condition(model, "Ready")["status"] == "True"


def test_a_spec_that_is_put_back_in_the_middle_of_a_rollout_keeps_the_old_share(cluster: Cluster) -> None:
    model, old, _ = rolling(cluster)
    assert "gpulet.dev/leaving" in cluster.objects["Gpulet"][old]["metadata"]["labels"]
    model["spec"]["model"]["uri"] = "configmap://m/model.onnx"
    settle(cluster)
    assert list(cluster.objects["Gpulet"]) == [old]
    assert "gpulet.dev/leaving" not in cluster.objects["Gpulet"][old]["metadata"]["labels"]
    assert serving_pods(cluster) == [old[1]]
    cluster.writes.clear()
    settle(cluster, passes=2)
    assert cluster.writes == []


def test_a_replacement_that_fails_in_the_drain_gives_the_traffic_back(cluster: Cluster) -> None:
    _, old, new = rolling(cluster)
    cluster.kubelet()
    asyncio.run(one_pass(cluster))
    assert cluster.objects["Pod"][old]["metadata"]["labels"]["gpulet.dev/routed"] == "false"
    cluster.objects["Pod"][new]["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    asyncio.run(one_pass(cluster))
    assert old in cluster.objects["Gpulet"]
    assert old[1] in serving_pods(cluster)
