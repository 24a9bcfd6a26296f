"""A pod's end lasts as long as its requests may."""

import json

import pytest

from tests.controller.cluster import Cluster, given_profile, inference_model, node, whole_gpu_slice
from tests.controller.passes import settle


@pytest.mark.parametrize(
    ("objective_ms", "patience_s", "grace_s"), [(200, 10, 35), (60_000, 120, 255), (3_600_000, 600, 1215)]
)
def test_a_slow_model_is_given_time_to_answer_what_is_in_flight(
    objective_ms: float, patience_s: float, grace_s: int
) -> None:
    cluster = Cluster()
    cluster.add(node("node1"))
    cluster.add(whole_gpu_slice("node1", 0))
    cluster.add(given_profile("p"))
    cluster.add(inference_model("m", rate=1, slo_ms=objective_ms, profileRef={"name": "p"}))
    settle(cluster, passes=3)
    (pod,) = cluster.objects["Pod"].values()
    assert pod["spec"]["terminationGracePeriodSeconds"] == grace_s
    assert json.loads(pod["spec"]["containers"][0]["args"][1])["patienceSeconds"] == patience_s
