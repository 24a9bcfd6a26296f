"""From a Problem to a Plan."""

from __future__ import annotations

import math
from dataclasses import replace

from gpulet.model.demand import Demand, ModelId
from gpulet.model.plan import Placed, Plan, Problem, Slot
from gpulet.planner import program
from gpulet.planner.admit import admit
from gpulet.planner.arrange import arranged
from gpulet.planner.assign import Fleet, Ways
from gpulet.planner.eligibility import Rules
from gpulet.planner.explain import hopeless, left_out, why_this_share
from gpulet.planner.factor import highest_factor
from gpulet.planner.headroom import largest_node, with_headroom, without_node
from gpulet.planner.keep import option_of_slot
from gpulet.planner.neighbours import with_slowdowns
from gpulet.planner.packing import Packing, key_of, slot_order
from gpulet.planner.sanity import findings
from gpulet.planner.search import Found, Search
from gpulet.planner.throughput import Option, options_of, predicted_ms
from gpulet.planner.weighted.catalogue import Catalogue
from gpulet.planner.weighted.plan import weighted
from gpulet.planner.weighted.search import WeightedSearch

_BOUND_TOLERANCE = 1e-4
_ROUNDS = 3
MOST_SINGLY = 100
"""Models of an even split that are planned one by one: beyond, that takes long and leaves more GPUs over the bound."""


def plan(problem: Problem) -> Plan:
    """The cheapest set of shares that meets all demands, changing as little of ``problem.current`` as that allows.

    Pure: the same problem, in whatever order, gives the same plan. Under an even split every model has one option (kind
    of share, percent, batch, instances) for all its replicas; under a weighted one they may differ. Who does not fit is
    left out by priority, and said why.
    """
    rules = Rules.of(problem)
    everyone = with_slowdowns(replace(problem, demands=tuple(sorted(problem.demands, key=lambda d: d.model))))
    if problem.policy.objective == "rate":
        return highest_factor(everyone, _at_rates, lambda p: _fits(p, rules), lambda p: _impossible(p, rules))
    return _at_rates(everyone)


def _at_rates(problem: Problem) -> Plan:
    if problem.policy.node_failure_headroom:
        return with_headroom(problem, lambda p: _fewest(p, Rules.of(p)))
    return _fewest(problem, Rules.of(problem))


def _fewest(problem: Problem, rules: Rules) -> Plan:
    return _weighted(problem, rules) if _by_prices(problem) else _even(problem, rules)


def _by_prices(problem: Problem) -> bool:
    """Whether the method of slot prices plans: under a weighted split, and for fleets beyond the exact programs."""
    return problem.policy.split == "weighted" or len(problem.demands) > MOST_SINGLY


def _fits(problem: Problem, rules: Rules) -> bool:
    lost = largest_node(problem) if problem.policy.node_failure_headroom else None
    if lost is not None:
        return all(_all_placed(p, rules) for p in (problem, without_node(problem, lost)))
    return _all_placed(problem, rules)


def _all_placed(problem: Problem, rules: Rules) -> bool:
    if _by_prices(problem):
        return isinstance(WeightedSearch(problem, rules, Catalogue(problem.policy)).run(), Found)
    return isinstance(Search(problem, rules, _ways(problem)).run(), Found)


def _impossible(problem: Problem, rules: Rules) -> bool:
    """Whether the bound says that not all models fit the GPUs there are."""
    if _by_prices(problem):
        return WeightedSearch(problem, rules, Catalogue(problem.policy)).impossible()
    packing, fleet = Packing(problem, rules), Fleet.of(problem, rules)
    return not program.choose(problem, packing, fleet, _ways(problem), unit_price=True).feasible


def _weighted(problem: Problem, rules: Rules) -> Plan:
    outcome = weighted(problem, rules)
    found, demands = outcome.found, {d.model: d for d in problem.demands}
    unplaced = [left_out(demands[m], problem, rules, found.slots, fits) for m, fits in outcome.cut_per_s.items()]
    gpus = len({key_of(slot.device) for slot in found.slots})
    bound = found.bound
    if problem.policy.prices or not math.isfinite(found.cost):
        unpriced = replace(problem, demands=outcome.demands, policy=replace(problem.policy, prices=()))
        bound = WeightedSearch(unpriced, rules, Catalogue(problem.policy)).bound() if outcome.demands else 0.0
    return Plan(
        placed=outcome.placed,
        unplaced=tuple(sorted((*unplaced, *outcome.hopeless), key=lambda u: u.model)),
        gpus=gpus,
        lower_bound=min(gpus, math.ceil(bound - _BOUND_TOLERANCE)),
        bound_kind=found.kind,
        bound_covers=found.covers,
        notes=_notes(found, problem),
    )


def _even(everyone: Problem, rules: Rules) -> Plan:
    problem = everyone
    fleet = Fleet.of(everyone, rules)
    unplaced = [u for d in everyone.demands if (u := hopeless(d, everyone, rules, fleet)) is not None]
    out = {u.model for u in unplaced}
    possible = replace(everyone, demands=tuple(d for d in everyone.demands if d.model not in out))
    found, demands, cut_per_s = _placed_demands(possible, rules)
    found = arranged(replace(problem, demands=demands), rules, found)
    originals = {d.model: d for d in possible.demands}
    for model, fits_per_s in cut_per_s.items():
        unplaced.append(left_out(originals[model], possible, rules, found.slots, fits_per_s))
    placed = tuple(_placed(d, found.slots, everyone) for d in demands)
    gpus = len({key_of(slot.device) for slot in found.slots})
    return Plan(
        placed=placed,
        unplaced=tuple(sorted(unplaced, key=lambda u: u.model)),
        gpus=gpus,
        lower_bound=_lower_bound(found, replace(problem, demands=demands), rules, gpus),
        bound_kind=found.kind,
        bound_covers=found.covers,
        notes=_notes(found, problem),
    )


def _ways(problem: Problem) -> Ways:
    return {d.model: options_of(d, problem.policy) for d in problem.demands}


def _placed_demands(problem: Problem, rules: Rules) -> tuple[Found, tuple[Demand, ...], dict[ModelId, float]]:
    """All models if they fit; else those that are admitted, with what was cut off the others."""
    if not problem.demands:
        return Found((), 0.0, 0.0), (), {}
    found = Search(problem, rules, _ways(problem)).run()
    if isinstance(found, Found):
        return found, problem.demands, {}
    # What is left to a model that fits in part depends on where the others are: asked again from the answer, until
    # the answer stays, so that the plan of the planned world changes nothing here either.
    answer = _admitted(problem, rules)
    for _ in range(_ROUNDS):
        again = _admitted(replace(problem, current=answer[0].slots), rules)
        settled = again[0].slots == answer[0].slots
        answer = again
        if settled:
            break
    return answer


def _admitted(problem: Problem, rules: Rules) -> tuple[Found, tuple[Demand, ...], dict[ModelId, float]]:
    admitted = admit(problem, rules, _ways(problem))
    demands = tuple(d for _, d in sorted(admitted.demands.items()))
    if not demands:
        return Found((), 0.0, 0.0), (), admitted.cut_per_s
    fewer = replace(problem, demands=demands)
    found = Search(fewer, rules, _ways(fewer)).run()
    if isinstance(found, Found):
        return found, demands, admitted.cut_per_s
    slots = admitted.slots
    return Found(slots, math.inf, 0.0), demands, admitted.cut_per_s


def _placed(demand: Demand, slots: tuple[Slot, ...], problem: Problem) -> Placed:
    own = tuple(sorted((s for s in slots if s.model == demand.model), key=slot_order))
    product = next(g.product for g in problem.gpus if key_of(g) == key_of(own[0].device))
    option = option_of_slot(own[0], demand, product, problem.policy)
    assert isinstance(option, Option)
    latency_ms = predicted_ms(option, demand, problem.policy.latency_rule, replicas=len(own))
    reason = why_this_share(option, demand, replicas=len(own), predicted_ms=latency_ms)
    each_per_s = (option.replica_per_s,) * len(own)
    return Placed(demand.model, own, latency_ms, len(own) * option.replica_per_s, reason, each_per_s)


def _lower_bound(found: Found, problem: Problem, rules: Rules, gpus: int) -> int:
    """Fewest GPUs of any plan of the same demands. With prices, a bound on the cost says nothing about the number."""
    if not problem.demands:
        return 0
    if not problem.policy.prices and math.isfinite(found.cost):
        bound = found.bound
    else:
        fleet = Fleet.of(problem, rules)
        bound = program.choose(problem, Packing(problem, rules), fleet, _ways(problem), unit_price=True).bound
    return min(gpus, math.ceil(bound - _BOUND_TOLERANCE))


def _notes(found: Found, problem: Problem) -> tuple[str, ...]:
    notes = [*found.notes, *findings(problem.demands)]
    if problem.policy.prices and math.isfinite(found.cost):
        notes.append(f"price {found.cost:g}, proven to be at least {found.bound:g}")
    busy = {key_of(slot.device) for slot in found.slots} | {key_of(usage.device) for usage in problem.usages}
    for product in sorted({g.product for g in problem.gpus}):
        empty = sum(g.product == product and g.schedulable and key_of(g) not in busy for g in problem.gpus)
        if empty < problem.policy.transition_reserve:
            reserve = problem.policy.transition_reserve
            notes.append(
                f"{empty} empty {product} left, transitionReserve asks for {reserve}: changes may have to break first"
            )
    return tuple(notes)
