"""The simulator against closed formulas of queueing theory, within 3 %.

Method: the mean of three runs with fixed seeds and a fixed number of requests is held against the formula.
Observed: means of three at most 2.5 % off; single runs at most: M/D/1 mean 2.1 %, its tail 1.8 %, M/G/1 1.2 %,
bulk service 3.6 %, Erlang C 3.3 %.
"""

import math

import numpy as np
import pytest

from gpulet.sim.arrivals import poisson
from gpulet.sim.batcher import Batcher, Served, serve
from gpulet.sim.service import ServiceTimes

SEEDS = (1, 2, 3)


def holds(runs: list[float], formula: float) -> None:
    print(f"formula {formula:.4g}, runs off by", ", ".join(f"{run / formula - 1:+.2%}" for run in runs))
    assert np.mean(runs) == pytest.approx(formula, rel=0.03)


def mean_wait(served: Served, mean_ms: float) -> float:
    return float(served.latency_ms.mean()) - mean_ms


def exponential(chance: np.random.Generator, batches: int) -> np.ndarray:
    """Draws that make a lognormal of sigma 1 an exponential time: exp(n - 1/2) = E."""
    return np.log(chance.exponential(1.0, batches)) + 0.5


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8, 0.9])
def test_one_server_constant_time(load: float) -> None:
    """M/D/1: mean wait = load D / (2 (1 - load)); 1.5 million requests a seed."""
    service = ServiceTimes.constant([4.0])
    runs = [serve(poisson(np.random.default_rng(s), 250 * load, 1_500_000), Batcher(1), service) for s in SEEDS]
    holds([mean_wait(r, 4.0) for r in runs], load * 4.0 / (2 * (1 - load)))


@pytest.mark.parametrize(("load", "quantile"), [(0.3, 0.99), (0.6, 0.99), (0.8, 0.95), (0.8, 0.99)])
def test_tail_of_one_server_constant_time(load: float, quantile: float) -> None:
    """M/D/1: P(wait <= t) = (1 - load) sum over i of (-x_i)^i / i! exp(x_i), x_i = load (t / D - i) (Erlang 1909)."""

    def within(t: float) -> float:
        x = [load * (t - i) for i in range(int(t) + 1)]
        return (1 - load) * math.fsum((-v) ** i / math.factorial(i) * math.exp(v) for i, v in enumerate(x))

    low, high = 0.0, 25.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if within(middle) < quantile else (low, middle)
    service = ServiceTimes.constant([1.0])
    runs = [serve(poisson(np.random.default_rng(s), 1000 * load, 1_000_000), Batcher(1), service) for s in SEEDS]
    holds([np.quantile(r.latency_ms, quantile) for r in runs], 1 + low)


@pytest.mark.parametrize(("load", "sigma"), [(0.5, 0.3), (0.8, 0.3), (0.7, 0.8)])
def test_one_server_with_spread(load: float, sigma: float) -> None:
    """M/G/1 (Pollaczek-Khinchine): mean wait = rate E[S^2] / (2 (1 - load)); lognormal S has
    E[S^2] = E[S]^2 exp(sigma^2).
    """
    service = ServiceTimes((5.0,), (sigma,))
    waits = []
    for seed in SEEDS:
        chance = np.random.default_rng(seed)
        arrivals = poisson(chance, 200 * load, 1_500_000)
        waits.append(mean_wait(serve(arrivals, Batcher(1), service, service.factors(chance, len(arrivals))), 5.0))
    holds(waits, load * 5.0 * math.exp(sigma**2) / (2 * (1 - load)))


@pytest.mark.parametrize(("batch", "load"), [(2, 0.5), (4, 0.7), (16, 0.8)])
def test_bulk_service_exponential(batch: int, load: float) -> None:
    """M/M/1 with batches of 1 to B: n wait in a busy server with probability P r^n, r the root in (0, 1) of
    mu r^(B+1) - (lambda + mu) r + lambda = 0 (general bulk service rule, Neuts 1967); mean wait by Little's law.
    """
    arrival, end = load * batch, 1.0
    low, high = 0.0, 1 - 1e-9
    for _ in range(200):
        r = (low + high) / 2
        low, high = (r, high) if end * r ** (batch + 1) - (arrival + end) * r + arrival > 0 else (low, r)
    empty_but_busy = 1 / (end / arrival + 1 / (1 - low))
    wait = empty_but_busy * low / (1 - low) ** 2 / arrival
    service = ServiceTimes((1.0,) * batch, (1.0,) * batch)
    waits = []
    for seed in SEEDS:
        chance = np.random.default_rng(seed)
        arrivals = poisson(chance, 1000 * arrival, 600_000)
        waits.append(mean_wait(serve(arrivals, Batcher(batch), service, exponential(chance, len(arrivals))), 1.0))
    holds(waits, wait)


@pytest.mark.parametrize(("batch", "load", "fixed"), [(1, 0.7, 1.0), (8, 0.6, 1.0), (8, 0.8, 0.3), (32, 0.9, 0.2)])
def test_bulk_service_constant_time(batch: int, load: float, fixed: float) -> None:
    """M/D(b)/1 with batches of 1 to B: the embedded chain of the number waiting when the server is free, solved
    densely; mean wait from the mean number of requests present over a cycle, by Little's law.
    """
    time_ms = np.array([fixed + (1 - fixed) * b / batch for b in range(1, batch + 1)])
    arrival = load * batch
    size = 12 * batch + 60
    j = np.arange(size)
    log_factorial = np.array([math.lgamma(k + 1) for k in j])
    step, idle, cycle_ms, waiting = np.zeros((size, size)), np.zeros(size), np.zeros(size), np.zeros(size)
    for n in range(1, size):
        taken = min(n, batch)
        spent, rest = time_ms[taken - 1], n - taken
        chance = np.exp(j * math.log(arrival * spent) - arrival * spent - log_factorial)
        after = np.zeros(size)
        after[rest:] = chance[: size - rest]
        idle[n] = after[0]
        after[1], after[0] = after[1] + after[0], 0.0
        after[-1] += 1 - after.sum()
        step[n] = after
        cycle_ms[n] = spent + idle[n] / arrival
        waiting[n] = rest * spent + arrival * spent**2 / 2
    balance = np.vstack([(step[1:, 1:].T - np.eye(size - 1)), np.ones(size - 1)])
    share = np.linalg.lstsq(balance, np.append(np.zeros(size - 1), 1.0), rcond=None)[0]
    wait = (share @ waiting[1:]) / (share @ cycle_ms[1:]) / arrival
    service = ServiceTimes.constant(time_ms.tolist())
    runs = [serve(poisson(np.random.default_rng(s), 1000 * arrival, 300_000), Batcher(batch), service) for s in SEEDS]
    own = [float(np.sum(time_ms[r.batches - 1] * r.batches) / r.batches.sum()) for r in runs]
    holds([mean_wait(r, o) for r, o in zip(runs, own, strict=True)], wait)


@pytest.mark.parametrize(("servers", "load"), [(2, 0.7), (4, 0.7)])
def test_several_instances(servers: int, load: float) -> None:
    """M/M/c (Erlang C): mean wait = C / (c mu - lambda)."""
    offered = servers * load
    terms = [offered**k / math.factorial(k) for k in range(servers)]
    last = offered**servers / math.factorial(servers) / (1 - load)
    wait = last / (sum(terms) + last) / (servers - offered)
    service = ServiceTimes((1.0,), (1.0,))
    waits = []
    for seed in SEEDS:
        chance = np.random.default_rng(seed)
        arrivals = poisson(chance, 1000 * offered, 400_000)
        waits.append(mean_wait(serve(arrivals, Batcher(1, servers), service, exponential(chance, len(arrivals))), 1.0))
    holds(waits, wait)
