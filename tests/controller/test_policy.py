"""What an admin's policy asks of the planner reaches it."""

import asyncio

from gpulet.api.policy import Policy
from tests.controller.cluster import Cluster, given_profile, inference_model, node, whole_gpu_slice
from tests.controller.passes import POLICY, condition, one_pass


def settled(policy: Policy, *, rate: float, largest_percent: int = 100) -> Cluster:
    cluster = Cluster()
    for name in ("node1", "node2"):
        cluster.add(node(name))
        for index in range(2):
            cluster.add(whole_gpu_slice(name, index))
    profile = cluster.add(given_profile("p"))
    points = profile["spec"]["points"]
    profile["spec"]["points"] = [point for point in points if point["computePercent"] <= largest_percent]
    cluster.add(inference_model("m", rate=rate, slo_ms=300, profileRef={"name": "p"}))
    for _ in range(6):
        asyncio.run(one_pass(cluster, policy=policy))
        cluster.kubelet()
    return cluster


def test_two_fault_domains_cost_a_device_and_are_on_two_nodes() -> None:
    def devices(policy: Policy) -> set[tuple[str, str]]:
        shares = settled(policy, rate=60, largest_percent=40).objects["Gpulet"].values()
        assert len(shares) > 1
        return {(s["spec"]["device"]["node"], s["spec"]["device"]["gpu"]) for s in shares}

    assert len(devices(POLICY)) == 1
    apart = devices(POLICY.model_copy(update={"fault_domains": True}))
    assert len(apart) == 2 and len({place for place, _ in apart}) == 2


def test_room_for_a_node_s_failure_is_kept() -> None:
    """480 requests/s fill three of four GPUs; after the loss of a node two would be left."""
    careful = POLICY.model_copy(update={"node_failure_headroom": True})
    without, with_room = settled(POLICY, rate=480), settled(careful, rate=480)
    (model,) = without.objects["InferenceModel"].values()
    assert condition(model, "Planned")["reason"] == "Fits"
    (model,) = with_room.objects["InferenceModel"].values()
    assert condition(model, "Planned")["status"] == "False"
