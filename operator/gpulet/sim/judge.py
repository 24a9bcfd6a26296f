"""A plan put to the test: every placed model is served at its declared rate, request by request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from gpulet.model.demand import Demand, ModelId
from gpulet.model.plan import Placed, Plan, Problem, Slot
from gpulet.sim.arrivals import Times, poisson, split
from gpulet.sim.batcher import Batcher, serve
from gpulet.sim.service import of_slot
from gpulet.sim.turns import turns

Arrivals = Callable[[np.random.Generator, float, int], Times]
"""Generator, requests per second, number of requests."""
Slowdown = Callable[[Slot], float]
"""How many times longer a batch of this slot takes than alone."""


@dataclass(frozen=True)
class Verdict:
    """What a model's callers saw."""

    model: ModelId
    requests: int
    latency_ms: float
    """Of the objective's percentile, over all replicas."""
    objective_ms: float
    late: float
    """Fraction of requests above the objective."""

    @property
    def missed(self) -> bool:
        return self.latency_ms > self.objective_ms


def judged(
    problem: Problem,
    plan: Plan,
    *,
    seed: int,
    requests: int = 20_000,
    arrivals: Arrivals = poisson,
    slowdown: Slowdown | None = None,
) -> tuple[Verdict, ...]:
    """One verdict a placed model, in the order of the plan.

    Each model has ``requests`` requests of its own stream at ``Demand.requests_per_s``, split over its replicas at
    random by what each sustains, and its own random numbers: another model in the plan changes nothing.
    ``slowdown``: interference; none: every share is as fast as its profile.
    """
    demands = {demand.model: demand for demand in problem.demands}
    products = {(gpu.node, gpu.uuid): gpu.product for gpu in problem.gpus}
    verdicts = []
    for placed in plan.placed:
        name = np.frombuffer(str(placed.model).encode(), dtype=np.uint8).tolist()
        chance = np.random.default_rng([seed, *name])
        demand = demands[placed.model]
        times = arrivals(chance, demand.requests_per_s, requests)
        latency_ms = _latencies(chance, demand, placed, times, products, slowdown or _none)
        worst = float(np.quantile(latency_ms, demand.percentile / 100, method="higher"))
        late = float(np.mean(latency_ms > demand.latency_ms))
        verdicts.append(Verdict(placed.model, len(times), worst, demand.latency_ms, late))
    return tuple(verdicts)


def _none(slot: Slot) -> float:
    return 1.0


def _latencies(
    chance: np.random.Generator,
    demand: Demand,
    placed: Placed,
    times: Times,
    products: dict[tuple[str, str], str],
    slowdown: Slowdown,
) -> Times:
    streams = split(chance, times, placed.slot_per_s or (1.0,) * len(placed.slots))
    found = []
    for slot, stream in zip(placed.slots, streams, strict=True):
        turn = next((t for t in slot.turns if t.model == placed.model), None)
        own = slot if turn is None else replace(slot, batch=turn.batch, instances=1)
        service = of_slot(demand.profile, own, products[slot.device.node, slot.device.gpu]).slower(slowdown(slot))
        if turn is not None:
            found.append(turns(stream, slot.cycle_us / 1000, turn.batch, service, service.factors(chance, len(stream))))
            continue
        batcher = Batcher(slot.batch, slot.instances, slot.queue_delay_us / 1000)
        found.append(serve(stream, batcher, service, service.factors(chance, len(stream))).latency_ms)
    return np.concatenate(found)
