"""Who may stand beside whom: what the controller creates, the node's agent prepares."""

import asyncio
import copy
import itertools
from typing import Any

import pytest

from gpulet.agent.checks import refusal
from gpulet.agent.claims import ClaimRecord
from gpulet.agent.devices import NodeDevice
from gpulet.api.gpulet import Gpulet
from gpulet.build.gpulet import share_of
from gpulet.controller import decide
from gpulet.controller.workloads import config_in
from gpulet.model.sharing import Tenant, conflict
from gpulet.nvidia.source import PhysicalGpu
from gpulet.planner.packing import may_share
from tests.controller.cluster import Cluster, given_profile, inference_model, node, whole_gpu_slice
from tests.controller.passes import POLICY, condition, one_pass, settle


@pytest.fixture
def cluster() -> Cluster:
    """One node, one GPU: whoever comes has to do with who is there."""
    made = Cluster()
    made.add(node("node1"))
    made.add(whole_gpu_slice("node1", 0))
    return made


def tuning_job(percent: int) -> dict[str, Any]:
    spec = {
        "model": {"uri": "configmap://x/m.onnx", "format": "onnx"},
        "batch": 1,
        "computePercent": percent,
        "trials": 10,
        "output": {"uri": "pvc://o/x"},
    }
    return {
        "apiVersion": "gpulet.dev/v1alpha1",
        "kind": "TuningJob",
        "metadata": {"name": "t", "namespace": "vision"},
        "spec": spec,
    }


def workloads(cluster: Cluster) -> list[str]:
    kinds = ("models", "tuning", "profiling")
    return sorted(next(k for k in kinds if k in g["spec"]) for g in cluster.objects["Gpulet"].values())


def accepted_by_the_agent(cluster: Cluster) -> bool:
    """Whether each claim could be prepared beside all others of its device, as the agent judges."""
    records = []
    for key, raw in cluster.objects["Gpulet"].items():
        share, config = share_of(Gpulet.model_validate(raw).spec), config_in(cluster.objects["ResourceClaim"][key])
        assert config is not None
        records.append(record(key[1], key[0], config.isolation, config.purpose, share.compute_percent))
    return all(refusal(one, DEVICE, ((o, DEVICE) for o in records)) is None for one in records)


GPU = PhysicalGpu(
    index=0,
    uuid="GPU-node1-0",
    product="P",
    architecture="Ampere",
    memory_mib=81920,
    clients=48,
    compute_slices=7,
    memory_slices=8,
    whole=True,
    placements=(),
    millicores=0,
)
DEVICE = NodeDevice("node1/gpu", "gpu-0", GPU)


def record(uid: str, namespace: str, isolation: Any, purpose: Any, percent: int) -> ClaimRecord:
    return ClaimRecord(
        uid=uid,
        namespace=namespace,
        name=uid,
        boot_id="b",
        request="share",
        pool=DEVICE.pool,
        device=DEVICE.name,
        share_id=None,
        gpu=DEVICE.gpu.uuid,
        profile=None,
        start=None,
        compute_percent=percent,
        memory_mib=1024,
        clients=1,
        isolation=isolation,
        purpose=purpose,
    )


def test_tuning_yields_even_where_the_sums_would_fit(cluster: Cluster) -> None:
    """40 % and 20 % are less than a device, but a candidate kernel that crashes would end the model beside it."""
    cluster.add(tuning_job(40))
    settle(cluster, passes=3)
    assert workloads(cluster) == ["tuning"]
    cluster.add(given_profile("p"))
    model = cluster.add(inference_model("m", rate=5, slo_ms=200, profileRef={"name": "p"}))
    settle(cluster)
    assert workloads(cluster) == ["models"]
    assert condition(model, "Ready")["status"] == "True"
    assert "YieldedToServing" in [e.reason for e in cluster.events]


def test_profiling_yields_too(cluster: Cluster) -> None:
    measured = given_profile("q", namespace="other")
    measured["spec"] = {
        "model": {"uri": "configmap://a/m.onnx", "format": "onnx"},
        "measure": {"computePercents": [40], "batches": [1]},
    }
    cluster.add(measured)
    settle(cluster, passes=2)
    assert workloads(cluster) == ["profiling"]
    cluster.add(given_profile("p"))
    cluster.add(inference_model("m", rate=5, slo_ms=200, profileRef={"name": "p"}))
    settle(cluster)
    assert workloads(cluster) == ["models"]


def test_of_two_namespaces_that_will_not_share_the_more_important_gets_the_gpu(cluster: Cluster) -> None:
    for namespace, priority in (("b", 0), ("a", 1000)):
        cluster.add(given_profile("p", namespace=namespace))
        spec: dict[str, Any] = {"priority": priority, "profileRef": {"name": "p"}}
        cluster.add(inference_model(namespace, namespace=namespace, rate=5, slo_ms=200, **spec))
        settle(cluster)
    assert {key[0] for key in cluster.objects["Gpulet"]} == {"a"}
    assert accepted_by_the_agent(cluster)


@pytest.mark.parametrize(("before", "after"), [("None", "Namespace"), ("Namespace", "None"), ("Any", "Namespace")])
def test_a_change_of_isolation_reaches_the_claim(cluster: Cluster, before: str, after: str) -> None:
    cluster.add(node("node2"))
    cluster.add(whole_gpu_slice("node2", 0))
    cluster.add(given_profile("p"))
    model = cluster.add(
        inference_model("m", rate=5, slo_ms=200, sharing={"isolation": before}, profileRef={"name": "p"})
    )
    settle(cluster)
    model["spec"]["sharing"]["isolation"] = after
    model["metadata"]["generation"] = 2
    settle(cluster)
    (claim,) = cluster.objects["ResourceClaim"].values()
    config = config_in(claim)
    assert config is not None and config.isolation == after
    assert condition(model, "Ready")["observedGeneration"] == 2 and condition(model, "Ready")["status"] == "True"


def test_a_share_of_a_profile_that_nobody_publishes_stops_nobody(cluster: Cluster) -> None:
    """Any admin may make such a Gpulet; how far it reaches is unknown, so it has its GPU for itself."""
    (published,) = cluster.objects["ResourceSlice"].values()
    whole = published["spec"]["devices"][0]
    for start in (0, 4):
        placement = copy.deepcopy(whole)
        placement["name"] = f"gpu-0-mig-{start}"
        placement["attributes"] |= {
            "type": {"string": "mig"},
            "profile": {"string": "3g.40gb"},
            "placementStart": {"int": start},
            "placementSize": {"int": 4},
            "computeSlices": {"int": 3},
        }
        placement["capacity"]["memory"] = {"value": "40Gi"}
        published["spec"]["devices"].append(placement)
    device = {"node": "node1", "gpu": "GPU-node1-0", "mig": {"profile": "3g.41gb", "start": 0}}
    cluster.add(
        {
            "apiVersion": "gpulet.dev/v1alpha1",
            "kind": "Gpulet",
            "metadata": {"name": "x", "namespace": "ops", "labels": {"gpulet.dev/origin": "manual"}},
            "spec": {
                "device": device,
                "computePercent": 50,
                "memory": "1Gi",
                "clients": 1,
                "models": [{"name": "zz", "batch": 1}],
            },
        }
    )
    cluster.add(node("node2"))
    cluster.add(whole_gpu_slice("node2", 0))
    profile = given_profile("p")
    profile["spec"]["points"] += [point | {"mig": "3g.40gb"} for point in profile["spec"]["points"]]
    cluster.add(profile)
    model = cluster.add(inference_model("m", rate=5, slo_ms=200, profileRef={"name": "p"}))
    settle(cluster)
    assert condition(model, "Ready")["status"] == "True"


def test_a_fault_about_one_object_stays_with_it(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the bug: the object says so, all others go on."""

    def falls_over(*_: object, **__: object) -> None:
        raise RuntimeError("nobody thought of this")

    monkeypatch.setattr(decide.tuning, "reconcile", falls_over)
    job = cluster.add(tuning_job(40))
    cluster.add(given_profile("p"))
    model = cluster.add(inference_model("m", rate=5, slo_ms=200, profileRef={"name": "p"}))
    settle(cluster)
    ready = condition(job, "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "InternalError") and "nobody thought" in ready["message"]
    assert condition(model, "Ready")["status"] == "True"


def test_the_planner_the_controller_and_the_agent_agree_on_neighbours() -> None:
    """One rule; the planner's own is that of two that serve."""
    isolations: tuple[Any, ...] = ("Any", "Namespace", "None")
    purposes: tuple[Any, ...] = ("serve", "tune", "profile")
    sides = list(itertools.product(("a", "b"), isolations, purposes))
    for (ns1, iso1, for1), (ns2, iso2, for2) in itertools.product(sides, sides):
        free = conflict(Tenant(ns1, iso1, for1), Tenant(ns2, iso2, for2)) is None
        one, other = record("1", ns1, iso1, for1, 40), record("2", ns2, iso2, for2, 40)
        assert free == (refusal(one, DEVICE, [(other, DEVICE)]) is None)
        if for1 == for2 == "serve":
            assert free == may_share(ns1, iso1, ns2, iso2)


def test_a_policy_change_of_what_pods_get_rolls_them_over(cluster: Cluster) -> None:
    cluster.add(node("node2"))
    cluster.add(whole_gpu_slice("node2", 0))
    cluster.add(given_profile("p"))
    cluster.add(inference_model("m", rate=5, slo_ms=200, profileRef={"name": "p"}))
    settle(cluster)
    changed = POLICY.model_copy(update={"host_memory": "3Gi"})
    for _ in range(8):
        asyncio.run(one_pass(cluster, policy=changed))
        cluster.kubelet()
    (pod,) = cluster.objects["Pod"].values()
    assert pod["spec"]["containers"][0]["resources"]["requests"]["memory"] == "3Gi"
