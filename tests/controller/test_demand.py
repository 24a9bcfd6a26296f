"""A rate that follows what is observed: what is planned, and how often that is told. Whole passes of one loop."""

import asyncio
from typing import Any

import pytest

from gpulet.controller.decide import Pass, decide
from gpulet.controller.loop import Loop
from gpulet.controller.observations import Observations, ReplicaFigures
from gpulet.metrics.exported import Exported
from tests.controller.cluster import Cluster, given_profile, inference_model, node, whole_gpu_slice
from tests.controller.passes import NOW, POLICY, Memory


class Running:
    """One controller, with what it remembers from pass to pass."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        memory = Memory(cluster)
        self._loop = Loop(memory, memory, memory, Exported())  # type: ignore[arg-type]

    def observe(self, rate_per_s: float, *, seconds_since_write: float) -> Pass:
        """A pass while so many requests a second arrive at the first replica."""
        self.cluster.seconds_since_write = seconds_since_write
        key = min(self.cluster.objects["Gpulet"])
        figures = ReplicaFigures(requests=round(rate_per_s * 60), seconds=60, mean_ms=5, percentile_ms=9)
        self.cluster.observations = Observations(figures={key: figures}, silent_s={key: 1.0})
        return self.one_pass()

    def one_pass(self) -> Pass:
        known = asyncio.run(self._loop._plan(POLICY))
        self.cluster.carry_out(decide(known, now=NOW))
        self.cluster.kubelet()
        return known


@pytest.fixture
def served() -> tuple[Running, dict[str, Any]]:
    cluster = Cluster()
    for name in ("node1", "node2"):
        cluster.add(node(name))
        cluster.add(whole_gpu_slice(name, 0))
    cluster.add(given_profile("p"))
    model = cluster.add(inference_model("m", slo_ms=300, load={}, profileRef={"name": "p"}))
    running = Running(cluster)
    for _ in range(3):
        running.one_pass()
    running.observe(50, seconds_since_write=3600)
    for _ in range(6):
        running.one_pass()
    assert model["status"]["rate"]["planned"] == 50
    cluster.writes.clear()
    return running, model


def planned(known: Pass) -> float:
    return known.rates_per_s["vision", "m"]


def test_a_wobble_beyond_the_dead_band_is_planned_for_and_not_written(served: tuple[Running, dict[str, Any]]) -> None:
    running, model = served
    for _ in range(5):
        assert planned(running.observe(53, seconds_since_write=3600)) == 53
        assert planned(running.observe(50, seconds_since_write=3600)) == 50
    assert running.cluster.writes == []
    assert model["status"]["rate"]["planned"] == 50


def test_a_planned_rate_that_is_not_shown_yet_has_its_dead_band(served: tuple[Running, dict[str, Any]]) -> None:
    """Around what is planned, not around what was written last."""
    running, _ = served
    assert planned(running.observe(54, seconds_since_write=1)) == 54
    assert planned(running.observe(53, seconds_since_write=1)) == 54
    assert planned(running.observe(55, seconds_since_write=1)) == 54


def test_a_tenth_is_shown_after_thirty_seconds(served: tuple[Running, dict[str, Any]]) -> None:
    running, model = served
    assert planned(running.observe(56, seconds_since_write=20)) == 56
    assert model["status"]["rate"]["planned"] == 50
    running.observe(56, seconds_since_write=31)
    assert model["status"]["rate"]["planned"] == 56
    assert set(running.cluster.writes) <= {"status InferenceModel m", *gpulet_writes(running.cluster)}


def test_other_shares_are_shown_at_once_with_the_rate_they_are_for(served: tuple[Running, dict[str, Any]]) -> None:
    running, model = served
    before = set(running.cluster.objects["Gpulet"])
    running.observe(150, seconds_since_write=1)
    assert set(running.cluster.objects["Gpulet"]) != before
    running.one_pass()
    assert model["status"]["rate"]["planned"] == 150


def test_after_a_restart_what_was_shown_is_gone_on_from(served: tuple[Running, dict[str, Any]]) -> None:
    running, _ = served
    assert planned(Running(running.cluster).observe(51, seconds_since_write=1)) == 50


def gpulet_writes(cluster: Cluster) -> list[str]:
    return [f"status Gpulet {name}" for _, name in cluster.objects["Gpulet"]]
