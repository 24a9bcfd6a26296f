"""What is said of a model from the figures of its replicas, and from their silence. Whole passes."""

import asyncio
from typing import Any

import pytest

from gpulet.controller.observations import Observations, ReplicaFigures
from gpulet.controller.world import Key
from tests.controller.cluster import Cluster, given_profile, inference_model, of_nodes
from tests.controller.passes import condition, one_pass, rolling

LIMIT_MS = 200
ENOUGH = 1000
"""Requests for a p99: 10 / (1 - 0.99)."""


@pytest.fixture
def cluster() -> Cluster:
    return of_nodes(3)


def figures(requests: int, ms: float | None, *, seconds: float = 60) -> ReplicaFigures:
    return ReplicaFigures(requests=requests, seconds=seconds, mean_ms=ms and ms / 2, percentile_ms=ms)


def served(cluster: Cluster) -> tuple[dict[str, Any], list[Key]]:
    """A model with two replicas that are ready."""
    cluster.add(given_profile("p"))
    model = cluster.add(inference_model("m", rate=250, slo_ms=LIMIT_MS, profileRef={"name": "p"}))
    for _ in range(4):
        asyncio.run(one_pass(cluster))
        cluster.kubelet()
    keys = sorted(cluster.objects["Gpulet"])
    assert len(keys) == 2
    return model, keys


def observe(cluster: Cluster, told: dict[Key, ReplicaFigures], silent_s: dict[Key, float] | None = None) -> None:
    cluster.observations = Observations(figures=told, silent_s=silent_s or dict.fromkeys(told, 3.0))
    asyncio.run(one_pass(cluster))


def met(model: dict[str, Any]) -> tuple[str, str]:
    found = condition(model, "ObjectiveMet")
    return found["status"], found["reason"]


WITHIN, ABOVE = ("True", "WithinObjective"), ("False", "LatencyAboveObjective")
TOO_FEW = ("Unknown", "TooFewRequests")


@pytest.mark.parametrize(
    ("one", "other", "verdict"),
    [
        pytest.param((ENOUGH, 50), (ENOUGH, 150), WITHIN, id="both within"),
        pytest.param((ENOUGH, 50), (ENOUGH, 250), ABOVE, id="the worst one decides"),
        pytest.param((ENOUGH, 50), (5, 900), WITHIN, id="a cold one after a rollout does not"),
        pytest.param((ENOUGH, 250), (5, 50), ABOVE, id="a cold one hides nothing"),
        pytest.param((600, 50), (600, 150), WITHIN, id="together they are enough, and agree"),
        pytest.param((600, 250), (600, 250), ABOVE, id="together they are enough, and agree that it is late"),
        pytest.param((600, 50), (600, 250), TOO_FEW, id="together they are enough, and differ"),
        pytest.param((400, 50), (400, 50), TOO_FEW, id="together they are too few"),
        pytest.param((ENOUGH, 50), (0, None), WITHIN, id="an idle one says nothing"),
    ],
)
def test_who_has_too_few_requests_does_not_decide_alone(
    cluster: Cluster, one: tuple[int, float], other: tuple[int, float | None], verdict: tuple[str, str]
) -> None:
    model, keys = served(cluster)
    observe(cluster, {keys[0]: figures(*one), keys[1]: figures(*other)})
    assert met(model) == verdict


def test_the_latency_shown_is_of_the_worst_replica_that_is_judged(cluster: Cluster) -> None:
    model, keys = served(cluster)
    observe(cluster, {keys[0]: figures(ENOUGH, 50), keys[1]: figures(5, 900)})
    assert model["status"]["latency"]["observedPercentileMilliseconds"] == 50
    observe(cluster, {keys[1]: figures(5, 900)})
    assert model["status"]["latency"]["observedPercentileMilliseconds"] == 900


def test_a_replica_that_is_being_replaced_is_not_judged(cluster: Cluster) -> None:
    model, old, new = rolling(cluster)
    cluster.kubelet()
    observe(cluster, {old: figures(2 * ENOUGH, 900), new: figures(ENOUGH, 50)})
    assert met(model) == WITHIN
    assert model["status"]["rate"]["observed"] == pytest.approx(50, rel=0.01), "its requests count all the same"


def test_a_new_replica_s_short_window_does_not_double_the_rate(cluster: Cluster) -> None:
    """600 requests of the old one's minute and 50 of the new one's five seconds are 10.8 a second, not 20."""
    model, keys = served(cluster)
    observe(cluster, {keys[0]: figures(600, 9), keys[1]: figures(50, 7, seconds=5)})
    assert model["status"]["rate"]["observed"] == 10.8


def test_who_can_no_longer_be_reached_is_not_observed_any_more(cluster: Cluster) -> None:
    """Failure case J9 holds the rate; a condition must not rest on what was."""
    model, keys = served(cluster)
    told = {key: figures(ENOUGH, 50) for key in keys}
    observe(cluster, told, dict.fromkeys(keys, 59.0))
    assert met(model) == WITHIN
    observe(cluster, told, {keys[0]: 61.0, keys[1]: 3.0})
    assert met(model) == ("Unknown", "NotObserved")
    assert "1 of 2 replicas" in condition(model, "ObjectiveMet")["message"]
    assert model["status"]["latency"]["observedPercentileMilliseconds"] == 50, "of the one that still tells"
    observe(cluster, told, dict.fromkeys(keys, 61.0))
    assert met(model) == ("Unknown", "NotObserved")
    assert model["status"]["rate"]["observed"] == pytest.approx(33.3)
    assert "observedPercentileMilliseconds" not in model["status"]["latency"]
    gpulets = cluster.objects["Gpulet"]
    assert all("observedLatencyMilliseconds" not in gpulets[key]["status"] for key in keys)


def test_a_replica_that_is_late_is_said_beside_one_that_is_silent(cluster: Cluster) -> None:
    model, keys = served(cluster)
    observe(cluster, {keys[0]: figures(ENOUGH, 900)}, {keys[0]: 3.0, keys[1]: 300.0})
    assert met(model) == ABOVE


def test_who_was_never_reached_is_not_observed_and_the_remedy_is_told(cluster: Cluster) -> None:
    """A default-deny NetworkPolicy in the user's namespace."""
    model, keys = served(cluster)
    observe(cluster, {}, dict.fromkeys(keys, 5.0))
    assert met(model) == TOO_FEW
    observe(cluster, {}, dict.fromkeys(keys, 61.0))
    assert met(model) == ("Unknown", "NotObserved")
    message = condition(model, "ObjectiveMet")["message"]
    assert "8002" in message and "8003" in message and "NetworkPolicies" in message
    assert condition(model, "Ready")["status"] == "True", "it serves all the same"
    cluster.writes.clear()
    observe(cluster, {}, dict.fromkeys(keys, 900.0))
    assert cluster.writes == []
