"""A scheduler's no is remembered for a while, and forgotten with its yes."""

from typing import Any

from gpulet.controller.refusals import FIRST_BACKOFF_S, Refusals
from gpulet.model.demand import ModelId
from gpulet.model.device import Device
from tests.controller.cluster import Cluster

NO_CPU = "0/2 nodes are available: 1 Insufficient cpu."


def cluster_with_pod(pod_status: dict[str, Any], *, node: str | None = None) -> Cluster:
    cluster = Cluster()
    cluster.add(
        {
            "apiVersion": "gpulet.dev/v1alpha1",
            "kind": "Gpulet",
            "metadata": {"name": "g", "namespace": "ns", "labels": {"gpulet.dev/origin": "plan"}},
            "spec": {
                "device": {"node": "node1", "gpu": "GPU-a"},
                "computePercent": 50,
                "memory": "1Gi",
                "clients": 1,
                "models": [{"name": "m", "batch": 1}],
            },
        }
    )
    spec = {"nodeName": node} if node else {}
    cluster.add({"kind": "Pod", "metadata": {"name": "g", "namespace": "ns"}, "spec": spec, "status": pod_status})
    return cluster


def pending(message: str) -> dict[str, Any]:
    return {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "message": message}]}


def test_a_refusal_counts_after_the_policy_s_patience_and_carries_the_scheduler_s_words() -> None:
    refusals, world = Refusals(unusable_after_s=15), cluster_with_pod(pending(NO_CPU)).world()
    assert refusals.observe(world, now_s=0) == ()
    assert refusals.observe(world, now_s=14.9) == ()
    (refusal,) = refusals.observe(world, now_s=15)
    assert (refusal.model, refusal.device, refusal.reason) == (ModelId("ns", "m"), Device("node1", "GPU-a"), NO_CPU)


def test_a_refusal_ends_with_its_backoff_and_the_next_lasts_twice_as_long() -> None:
    refusals, world = Refusals(unusable_after_s=0), cluster_with_pod(pending(NO_CPU)).world()
    empty = Cluster().world()
    assert refusals.observe(world, now_s=0)
    assert refusals.observe(empty, now_s=FIRST_BACKOFF_S - 1)
    assert not refusals.observe(empty, now_s=FIRST_BACKOFF_S + 1)
    start = FIRST_BACKOFF_S + 2
    assert refusals.observe(world, now_s=start)
    assert refusals.observe(empty, now_s=start + 2 * FIRST_BACKOFF_S - 1)
    assert not refusals.observe(empty, now_s=start + 2 * FIRST_BACKOFF_S + 1)


def test_a_pod_that_got_its_place_after_all_is_not_moved() -> None:
    refusals = Refusals(unusable_after_s=0)
    assert refusals.observe(cluster_with_pod(pending(NO_CPU)).world(), now_s=0)
    bound = cluster_with_pod(
        {"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True"}]}, node="node1"
    )
    assert refusals.observe(bound.world(), now_s=1) == ()


def test_a_no_while_our_own_share_is_leaving_does_not_count() -> None:
    refusals, cluster = Refusals(unusable_after_s=0), cluster_with_pod(pending(NO_CPU))
    leaving = dict(cluster.objects["Gpulet"]["ns", "g"])
    leaving["metadata"] = leaving["metadata"] | {"name": "old", "deletionTimestamp": "2026-12-01T00:00:00Z"}
    cluster.add(leaving)
    assert refusals.observe(cluster.world(), now_s=100) == ()
