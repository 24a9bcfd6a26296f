"""An ordinary move (another share, another serving image) of a served spec is no outage, and looks like none."""

import asyncio
from typing import Any

import pytest

from gpulet.api.policy import Images
from tests.controller.cluster import Cluster, given_profile, inference_model, node, whole_gpu_slice
from tests.controller.passes import POLICY, condition, one_pass

RENEWED = POLICY.model_copy(update={"images": Images(serving="localhost/gpulet-triton:next")})


@pytest.fixture
def served() -> tuple[Cluster, dict[str, Any]]:
    cluster = Cluster()
    cluster.add(node("node1"))
    for index in range(2):
        cluster.add(whole_gpu_slice("node1", index))
    cluster.add(given_profile("p"))
    model = cluster.add(inference_model("m", rate=5, slo_ms=300, profileRef={"name": "p"}))
    for _ in range(4):
        asyncio.run(one_pass(cluster))
        cluster.kubelet()
    asyncio.run(one_pass(cluster))
    assert condition(model, "Serving")["reason"] == "AllReplicasReady"
    return cluster, model


def test_a_model_stays_ready_while_its_replacement_starts(served: tuple[Cluster, dict[str, Any]]) -> None:
    cluster, model = served
    reasons = []
    for step in range(8):
        asyncio.run(one_pass(cluster, policy=RENEWED))
        reasons.append(condition(model, "Serving")["reason"])
        assert condition(model, "Ready")["status"] == "True"
        if step >= 3:  # the replacement takes its time
            cluster.kubelet()
    assert reasons[0] == "Moving" and reasons[-1] == "AllReplicasReady"
    assert len(cluster.objects["Gpulet"]) == 1


def test_one_whose_old_replica_dies_in_a_move_is_not_ready(served: tuple[Cluster, dict[str, Any]]) -> None:
    cluster, model = served
    (old,) = cluster.objects["Pod"]
    asyncio.run(one_pass(cluster, policy=RENEWED))
    cluster.objects["Pod"][old]["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    asyncio.run(one_pass(cluster, policy=RENEWED))
    assert condition(model, "Serving")["status"] == "False"
    assert condition(model, "Ready")["status"] == "False"
