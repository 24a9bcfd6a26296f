"""The chain behind the latency rule, against the simulator (which is held against closed formulas in tests/sim)."""

import math

import numpy as np
import pytest

from gpulet.planner.queueing import latency, max_load, turn_load
from gpulet.sim.arrivals import poisson
from gpulet.sim.batcher import Batcher, serve
from gpulet.sim.service import ServiceTimes
from gpulet.sim.turns import turns

Z99 = 2.3263478740408408


def simulated(batch: int, instances: int, fixed: float, spread: float, load: float, requests: int) -> np.ndarray:
    """Latencies in full batch times; seeded."""
    sigma = Z99 - math.sqrt(Z99**2 - 2 * math.log(spread))
    times = [fixed + (1 - fixed) * b / batch for b in range(1, batch + 1)]
    service = ServiceTimes(tuple(times), (sigma,) * batch)
    chance = np.random.default_rng(11)
    arrivals = poisson(chance, 1000 * load * batch * instances, requests)
    return serve(arrivals, Batcher(batch, instances), service, service.factors(chance, requests)).latency_ms


REPLICAS = [
    (1, 1, 1.0, 1.0, 2.0),
    (1, 1, 1.0, 1.4, 4.0),
    (1, 3, 1.0, 1.1, 3.0),
    (2, 2, 0.4, 1.0, 2.5),
    (4, 1, 0.6, 1.2, 1.8),
    (8, 1, 0.2, 1.0, 1.2),
    (8, 1, 1.0, 1.0, 2.0),
    (8, 2, 0.4, 1.1, 2.2),
    (32, 1, 0.2, 1.3, 1.0),
    (32, 1, 0.2, 1.3, 3.0),
    (32, 4, 0.4, 1.0, 1.6),
    (128, 1, 0.2, 1.0, 1.1),
]


@pytest.mark.parametrize(("batch", "instances", "fixed", "spread", "patience"), REPLICAS)
@pytest.mark.parametrize("quantile", [0.95, 0.99])
def test_at_the_largest_load_the_simulated_queue_keeps_the_promise(
    batch: int, instances: int, fixed: float, spread: float, patience: float, quantile: float
) -> None:
    load = max_load(batch, instances, fixed, spread, patience, quantile)
    assert 0.01 < load <= 0.92
    late = np.mean(simulated(batch, instances, fixed, spread, load, 60_000) > patience)
    assert late <= 1 - quantile


@pytest.mark.parametrize(
    ("batch", "fixed", "patience"),
    [(1, 1.0, 2.0), (4, 0.6, 1.8), (8, 0.2, 1.2), (8, 0.2, 2.5), (32, 0.2, 1.0), (128, 0.2, 1.1)],
)
def test_a_quarter_beyond_it_the_promise_is_broken(batch: int, fixed: float, patience: float) -> None:
    """The rule does not waste: one replica in five at most is more than needed, in these cases."""
    load = max_load(batch, 1, fixed, 1.0, patience, 0.99)
    assert np.mean(simulated(batch, 1, fixed, 1.0, load * 1.25, 60_000) > patience) > 0.01


@pytest.mark.parametrize(("batch", "fixed"), [(1, 1.0), (4, 0.4), (8, 0.2), (8, 1.0), (32, 0.2), (256, 0.2)])
@pytest.mark.parametrize("load", [0.1, 0.5, 0.8])
def test_predicted_and_simulated_percentile_agree(batch: int, fixed: float, load: float) -> None:
    """Predicted is the later one (it plans for fewer late requests than allowed), by no more than 20 %."""
    seen = float(np.quantile(simulated(batch, 1, fixed, 1.0, load, 60_000), 0.99))
    assert seen * 0.98 <= latency(batch, 1, fixed, 1.0, load, 0.99) <= seen * 1.2


def test_small_batches_that_take_less_time_allow_more_load() -> None:
    assert max_load(16, 1, 1.0, 1.0, 1.6, 0.99) < max_load(16, 1, 0.6, 1.0, 1.6, 0.99)
    assert max_load(16, 1, 0.6, 1.0, 1.6, 0.99) < max_load(16, 1, 0.2, 1.0, 1.6, 0.99)


def test_larger_batches_more_patience_and_lower_percentiles_allow_more_load() -> None:
    assert (
        max_load(1, 1, 1.0, 1.0, 2.0, 0.99) < max_load(8, 1, 1.0, 1.0, 2.0, 0.99) < max_load(32, 1, 1.0, 1.0, 2.0, 0.99)
    )
    assert max_load(8, 1, 1.0, 1.0, 2.0, 0.99) < max_load(8, 1, 1.0, 1.0, 3.0, 0.99)
    assert (
        max_load(4, 1, 1.0, 1.0, 2.5, 0.999) < max_load(4, 1, 1.0, 1.0, 2.5, 0.99) < max_load(4, 1, 1.0, 1.0, 2.5, 0.9)
    )


def test_an_idle_replica_answers_in_the_time_of_its_smallest_batch() -> None:
    assert latency(8, 1, 0.2, 1.0, 0.001, 0.99) == pytest.approx(0.3, abs=0.05)
    assert max_load(8, 1, 0.2, 1.0, 0.25, 0.99) == 0.0


def test_an_overloaded_replica_is_late_by_any_measure() -> None:
    assert latency(8, 1, 0.2, 1.0, 1.0, 0.99) == 16


def test_what_is_allowed_is_predicted_in_time() -> None:
    for patience in (0.7, 1.0, 1.33, 2.0, 5.0):
        load = max_load(8, 2, 0.35, 1.2, patience, 0.99)
        assert latency(8, 2, 0.35, 1.2, load, 0.99) <= patience


@pytest.mark.parametrize("batch", [1, 2, 8, 32])
@pytest.mark.parametrize("quantile", [0.95, 0.99])
def test_a_turn_a_cycle_takes_nearly_all_requests_of_the_cycle_before(batch: int, quantile: float) -> None:
    load = turn_load(batch, quantile)

    def late(times_of_it: float) -> float:
        arrivals = poisson(np.random.default_rng(3), 1000 * load * times_of_it * batch, 100_000)
        found = turns(arrivals, cycle_ms=1.0, batch=batch, service=ServiceTimes.constant([0.25] * batch))
        return float(np.mean(found > 1.25 + 1e-9))

    assert late(1) <= 1 - quantile
    assert late(2) > 1 - quantile
