"""Which neighbours a model may get on a GPU, and how much slower the worst of them make it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gpulet.model.demand import Demand
from gpulet.model.plan import Problem
from gpulet.model.profile import Resident
from gpulet.planner.interference import Fitted, fitted
from gpulet.planner.packing import may_share


def with_slowdowns(problem: Problem) -> Problem:
    """The problem with ``Demand.slowdowns`` from the co-run points of all profiles; unchanged where there are none.

    A model pays for those that may sit beside it (isolation, namespace), not for the worst of the cluster. Unknown
    neighbours (no co-run points, foreign shares) count by the policy's margin. What is promised holds whoever of them
    comes: the plan needs no rule of who sits where.
    """
    co_runs = [c for d in problem.demands for c in d.profile.co_runs]
    if not co_runs:
        return problem
    model = fitted(co_runs, problem.policy.interference_margin)
    if not model.fits:
        return problem
    strangers = any(usage.device.profile is None for usage in problem.usages)
    demands = tuple(
        replace(demand, slowdowns=_slowdowns(demand, problem.demands, model, strangers)) for demand in problem.demands
    )
    return replace(problem, demands=demands)


def _slowdowns(
    demand: Demand, demands: Iterable[Demand], model: Fitted, strangers: bool
) -> tuple[tuple[str, int, float], ...]:
    if demand.isolation == "None":
        return ()
    neighbours = [d for d in demands if _may_meet(demand, d)]
    shares = sorted(
        {(p.product, p.compute_percent) for p in demand.profile.points if p.mig is None and p.compute_percent < 100}
    )
    found = []
    for product, percent in shares:
        factor = _worst(demand, product, percent, neighbours, model)
        least = 1 + model.margin.margin if strangers else 1.0
        found.append((product, percent, max(least, factor)))
    return tuple(found)


def _may_meet(demand: Demand, other: Demand) -> bool:
    """Another replica of its own included."""
    return may_share(demand.model.namespace, demand.isolation, other.model.namespace, other.isolation)


def _worst(demand: Demand, product: str, percent: int, neighbours: list[Demand], model: Fitted) -> float:
    """One neighbour with all the rest of the GPU, and beside it as many others as there is room for, taking nothing."""
    victim, rest = demand.profile.resident(product, percent), 100 - percent
    factors = []
    for neighbour in neighbours:
        points = [p for p in neighbour.profile.points if (p.product, p.mig) == (product, None)]
        if (neighbour.products is not None and product not in neighbour.products) or not points:
            continue
        smallest = min(p.compute_percent for p in points)
        if smallest > rest:
            continue
        others = [neighbour.profile.resident(product, rest)]
        others += [Resident(product, 0, 0.0, 0.0)] * (rest // smallest - 1)
        factors.append(model.slowdown(victim, others))
    return max(factors, default=1.0)
