"""A TuningJob that is disturbed, over whole passes: what it holds, what it says, and when its time is over."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from gpulet.controller.decide import decide
from tests.controller.cluster import Cluster, given_profile, inference_model, node, of_nodes, whole_gpu_slice
from tests.controller.passes import NOW, POLICY, condition, planned, settle


@pytest.fixture
def cluster() -> Cluster:
    made = of_nodes(2)
    made.add(given_profile("p"))
    made.add(inference_model("m", rate=5, slo_ms=300, profileRef={"name": "p"}))
    return made


def tuning_job(cluster: Cluster, name: str = "j", **spec: Any) -> dict[str, Any]:
    wanted = {"modelRef": {"name": "m"}, "trials": 8, "output": {"uri": "pvc://store/m"}}
    return cluster.add(
        {
            "apiVersion": "gpulet.dev/v1alpha1",
            "kind": "TuningJob",
            "metadata": {"name": name, "namespace": "vision"},
            "spec": wanted | spec,
        }
    )


def held(cluster: Cluster) -> set[str]:
    """What of the job exists, by kind and name."""
    found = {f"{kind} {name}" for kind in ("Service", "Job") for _, name in cluster.objects[kind] if name != "m"}
    tuning = {key for key, g in cluster.objects["Gpulet"].items() if "tuning" in g["spec"]}
    found |= {f"Gpulet {name}" for _, name in tuning}
    pods = {k for k, p in cluster.objects["Pod"].items() if "gpulet.dev/tuning-job" in p["metadata"]["labels"]}
    return found | {f"Pod {name}" for _, name in pods}


def later(cluster: Cluster, seconds: float, *, passes: int = 3) -> None:
    """Passes at a later time."""
    for _ in range(passes):
        known = asyncio.run(planned(cluster, POLICY))
        cluster.carry_out(decide(known, now=NOW + timedelta(seconds=seconds)))
        cluster.kubelet()


def test_a_job_that_takes_longer_than_its_deadline_fails_and_holds_nothing(cluster: Cluster) -> None:
    job = tuning_job(cluster, deadlineSeconds=60)
    settle(cluster)
    assert job["status"]["phase"] == "Searching"
    later(cluster, 59)
    assert job["status"]["phase"] == "Searching"
    later(cluster, 61)
    assert condition(job, "Succeeded")["reason"] == "DeadlineExceeded"
    assert held(cluster) == set()


def test_the_time_a_job_is_suspended_does_not_count(cluster: Cluster) -> None:
    job = tuning_job(cluster, deadlineSeconds=60)
    settle(cluster)
    job["spec"]["suspend"] = True
    later(cluster, 30)
    assert condition(job, "Succeeded")["reason"] == "Suspended"
    assert held(cluster) == set()
    assert "startTime" not in job["status"]
    job["spec"]["suspend"] = False
    later(cluster, 3600)
    assert job["status"]["phase"] == "Searching"
    later(cluster, 3659)
    assert job["status"]["phase"] == "Searching"
    later(cluster, 3661)
    assert condition(job, "Succeeded")["reason"] == "DeadlineExceeded"


def test_a_job_whose_model_is_gone_holds_nothing_and_goes_on_when_it_is_back(cluster: Cluster) -> None:
    job = tuning_job(cluster, deadlineSeconds=60)
    settle(cluster)
    assert any(name.startswith("Gpulet") for name in held(cluster))
    model = cluster.objects["InferenceModel"].pop(("vision", "m"))
    cluster._collect_garbage()
    later(cluster, 5)
    assert held(cluster) == set()
    gone = condition(job, "Succeeded")
    assert (gone["status"], gone["reason"]) == ("Unknown", "ModelNotFound") and "m" in gone["message"]
    later(cluster, 300)
    assert condition(job, "Succeeded")["reason"] == "ModelNotFound", "its deadline does not count meanwhile"
    cluster.add(model)
    later(cluster, 400)
    assert job["status"]["phase"] == "Searching"


def test_a_real_gpu_is_not_tuned_for_with_code_for_a_cpu() -> None:
    cluster = Cluster()
    cluster.add(node("node1"))
    cluster.add(whole_gpu_slice("node1", 0, millicores=0))
    cluster.add(given_profile("p"))
    cluster.add(inference_model("m", rate=5, slo_ms=300, profileRef={"name": "p"}))
    job = tuning_job(cluster)
    settle(cluster)
    refused = condition(job, "Succeeded")
    assert (refused["status"], refused["reason"]) == ("False", "NoCudaBuild")
    assert "CUDA build" in refused["message"] and "llvm" in refused["message"]
    assert held(cluster) == set()


def reaches(cluster: Cluster, sender: dict[str, Any], receiver: dict[str, Any], port: int) -> bool:
    """What a network that enforces NetworkPolicies lets through; ``sender``: namespace and labels."""
    policies = [
        p["spec"]
        for p in cluster.objects["NetworkPolicy"].values()
        if p["metadata"]["namespace"] == receiver["namespace"] and _selects(p["spec"]["podSelector"], receiver)
    ]
    rules = [rule for spec in policies for rule in spec["ingress"]]
    return not policies or any(
        any(_is_from(peer, sender, receiver["namespace"]) for peer in rule["from"])
        and ("ports" not in rule or port in [p["port"] for p in rule["ports"]])
        for rule in rules
    )


def _selects(selector: dict[str, Any], pod: dict[str, Any]) -> bool:
    assert set(selector) == {"matchLabels"}
    return bool(selector["matchLabels"].items() <= pod["labels"].items())


def _is_from(peer: dict[str, Any], sender: dict[str, Any], own_namespace: str) -> bool:
    if "namespaceSelector" in peer:
        namespace = {"labels": {"kubernetes.io/metadata.name": sender["namespace"]}}
        return _selects(peer["namespaceSelector"], namespace) and "podSelector" not in peer
    return sender["namespace"] == own_namespace and _selects(peer["podSelector"], sender)


def test_only_pods_of_the_same_job_reach_tracker_and_servers(cluster: Cluster) -> None:
    """They run what they are sent and ask nobody who he is."""
    for name in ("j", "other"):
        tuning_job(cluster, name)
    settle(cluster)
    pods = {name: p["metadata"] for (_, name), p in cluster.objects["Pod"].items()}
    tracker, stranger = pods["j-tracker"], pods["other-tracker"]
    server = next(p for p in pods.values() if p["labels"].get("gpulet.dev/role") == "server")
    assert server["labels"]["gpulet.dev/tuning-job"] == "j"
    serving = next(p for p in pods.values() if p["labels"].get("gpulet.dev/role") == "serve")
    template = cluster.objects["Job"]["vision", "j-clients"]["spec"]["template"]["metadata"]
    client = {"namespace": "vision", "labels": template["labels"]}
    controller = {"namespace": "gpulet-system", "labels": {}}
    elsewhere = {"namespace": "other", "labels": client["labels"]}
    for receiver, port in ((tracker, 9190), (server, 9090)):
        assert reaches(cluster, client, receiver, port) and reaches(cluster, server, receiver, port)
        for foreign in (stranger, serving, controller, elsewhere):
            assert not reaches(cluster, foreign, receiver, port)
    assert reaches(cluster, controller, tracker, 9191), "it reads the progress"
    assert reaches(cluster, elsewhere, serving, 8000), "what serves is open"


def test_a_job_that_is_over_takes_its_network_policy_along(cluster: Cluster) -> None:
    job = tuning_job(cluster)
    settle(cluster)
    (policy,) = cluster.objects["NetworkPolicy"].values()
    assert policy["metadata"]["ownerReferences"][0]["name"] == "j"
    job["spec"]["suspend"] = True
    settle(cluster, passes=2)
    assert not cluster.objects["NetworkPolicy"]
