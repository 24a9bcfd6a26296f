"""Who is left out when not all models fit under a weighted split: priority decides, then who is served, then the name.

A model whose rate goes beyond what is left gets as many replicas as there is room for, after all models of its own
priority that fit in full.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import groupby

from gpulet.model.demand import Demand, ModelId
from gpulet.model.plan import Problem, Slot
from gpulet.planner.assign import Fleet
from gpulet.planner.eligibility import Rules
from gpulet.planner.improve import packing_of
from gpulet.planner.packing import Packing
from gpulet.planner.search import Found
from gpulet.planner.weighted.catalogue import Catalogue
from gpulet.planner.weighted.market import Market, market_of
from gpulet.planner.weighted.search import WeightedSearch
from gpulet.planner.weighted.seats import carried_per_s, covered
from gpulet.planner.weighted.standing import COVERED, standing


@dataclass
class Admitted:
    """The models that fit together."""

    demands: dict[ModelId, Demand] = field(default_factory=dict)
    """In full, or with their rate cut to what fits."""
    cut_per_s: dict[ModelId, float] = field(default_factory=dict)
    """Rate that fits, of every model that does not fit in full; 0: none of it."""
    slots: tuple[Slot, ...] = ()


def admit(problem: Problem, rules: Rules, catalogue: Catalogue) -> Admitted:
    """As many of the first as a whole search fits, then whoever still fits beside them by best fit."""
    fleet = Fleet.of(problem, rules)
    market = market_of(problem, Packing(problem, rules), fleet, catalogue)
    served = _served(problem, rules, fleet, catalogue)
    order = sorted(problem.demands, key=lambda d: (-d.priority, d.model not in served, d.model))
    number, slots = _longest(order, problem, rules, catalogue)
    found = Admitted({d.model: d for d in order[:number]})
    packing = packing_of(problem, rules, slots)
    index = {d.model: i for i, d in enumerate(market.demands)}
    for _, level in groupby(order[number:], key=lambda d: d.priority):
        beyond = [d for d in level if not _in_full(d, found, packing, fleet, market, index[d.model])]
        for demand in beyond:
            _in_part(demand, found, packing, fleet, market, index[demand.model])
    found.slots = packing.all_slots()
    return found


def _served(problem: Problem, rules: Rules, fleet: Fleet, catalogue: Catalogue) -> set[ModelId]:
    """Models whose full rate is carried now: they are not displaced by another's growth."""
    held = standing(problem, Packing(problem, rules), fleet, catalogue)
    rates = {d.model: d.requests_per_s for d in problem.demands}
    return {m for m, found in held.items() if sum(h.option.replica_per_s for h in found) >= rates[m] * COVERED}


def _longest(order: list[Demand], problem: Problem, rules: Rules, catalogue: Catalogue) -> tuple[int, tuple[Slot, ...]]:
    """How many of the first fit together, and how; found by halving."""
    low, high, slots = 0, len(order) - 1, ()
    best: tuple[Slot, ...] = slots
    while low < high:
        middle = (low + high + 1) // 2
        answer = WeightedSearch(replace(problem, demands=tuple(order[:middle])), rules, catalogue).run()
        if isinstance(answer, Found):
            low, best = middle, answer.slots
        else:
            high = middle - 1
    return low, best


def _in_full(demand: Demand, found: Admitted, packing: Packing, fleet: Fleet, market: Market, index: int) -> bool:
    mark = packing.mark()
    if covered(packing, fleet, market, index, {}):
        found.demands[demand.model] = demand
        return True
    packing.back_to(mark)
    return False


def _in_part(demand: Demand, found: Admitted, packing: Packing, fleet: Fleet, market: Market, index: int) -> None:
    """As many replicas as there is room for."""
    covered(packing, fleet, market, index, {})  # stops where there is no more room
    carried = carried_per_s(packing, market, index)
    found.cut_per_s[demand.model] = min(carried, demand.requests_per_s)
    if carried > 0:
        found.demands[demand.model] = replace(demand, requests_per_s=found.cut_per_s[demand.model])
