"""From a Problem to who is placed where under a weighted split."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from gpulet.model.demand import Demand, ModelId
from gpulet.model.device import Gpu
from gpulet.model.plan import LatencyRule, Placed, Problem, Slot, Unplaced
from gpulet.planner.arrange import arranged
from gpulet.planner.eligibility import Rules
from gpulet.planner.explain import hopeless
from gpulet.planner.packing import GpuKey, key_of, slot_order
from gpulet.planner.search import Found
from gpulet.planner.throughput import Option, predicted_ms
from gpulet.planner.weighted.admit import admit
from gpulet.planner.weighted.catalogue import Catalogue
from gpulet.planner.weighted.search import WeightedSearch
from gpulet.planner.weighted.turns import predicted_in_turn_ms, sustained_per_s

_ROUNDS = 3


@dataclass(frozen=True)
class Outcome:
    found: Found
    placed: tuple[Placed, ...]
    demands: tuple[Demand, ...]
    """Of the models that are placed, with their rate cut to what fits."""
    cut_per_s: dict[ModelId, float]
    """Rate that fits, of every model that does not fit in full; 0: none of it."""
    hopeless: tuple[Unplaced, ...]
    """Models that could not run even alone."""


def weighted(problem: Problem, rules: Rules) -> Outcome:
    """``problem``: with its demands in order of their names."""
    catalogue = Catalogue(problem.policy)
    search = WeightedSearch(problem, rules, catalogue)
    out = _hopeless(search)
    if out:
        gone = {u.model for u in out}
        possible = replace(problem, demands=tuple(d for d in problem.demands if d.model not in gone))
        search = WeightedSearch(possible, rules, catalogue)
    found, demands, cut = _settled(search)
    found = arranged(replace(problem, demands=demands), rules, found)
    return Outcome(found, _placed(found.slots, demands, problem, catalogue), demands, cut, out)


def _hopeless(search: WeightedSearch) -> tuple[Unplaced, ...]:
    """Models that no kind of slot can serve, with what :mod:`explain` says of them."""
    problem, rules = search.problem, search.rules
    demands = [search.market.demands[index] for index in search.market.impossible()]
    demands += [d for d in problem.demands if d.model in rules.refused_everywhere and d not in demands]
    return tuple(why for d in demands if (why := hopeless(d, problem, rules, search.fleet)) is not None)


def _settled(search: WeightedSearch) -> tuple[Found, tuple[Demand, ...], dict[ModelId, float]]:
    """All models if they fit, else those that are admitted."""
    problem, rules, catalogue = search.problem, search.rules, search.catalogue
    if not problem.demands:
        return Found((), 0.0, 0.0), (), {}
    answer = search.run()
    if not isinstance(answer, Found):
        return _admitted(problem, rules, catalogue)
    # Whoever was placed by best fit may sit better once the others are known: asked again until the answer stays.
    for _ in range(_ROUNDS if search.repaired else 0):
        again = WeightedSearch(replace(problem, current=answer.slots), rules, catalogue).run()
        if not isinstance(again, Found) or again.slots == answer.slots:
            break
        answer = again
    return answer, problem.demands, {}


def _admitted(
    problem: Problem, rules: Rules, catalogue: Catalogue
) -> tuple[Found, tuple[Demand, ...], dict[ModelId, float]]:
    slots = None
    for _ in range(_ROUNDS):
        admitted = admit(problem, rules, catalogue)
        demands = tuple(d for _, d in sorted(admitted.demands.items()))
        found: object = Found((), 0.0, 0.0)
        if demands:
            fewer = replace(problem, demands=demands, current=admitted.slots)
            found = WeightedSearch(fewer, rules, catalogue).run()
        answer = found if isinstance(found, Found) else Found(admitted.slots, math.inf, 0.0)
        if answer.slots == slots:
            break
        slots = answer.slots
        problem = replace(problem, current=slots)
    return answer, demands, admitted.cut_per_s


def _placed(
    slots: tuple[Slot, ...], demands: tuple[Demand, ...], problem: Problem, catalogue: Catalogue
) -> tuple[Placed, ...]:
    gpus = {key_of(g): g for g in problem.gpus}
    own: dict[ModelId, list[Slot]] = {d.model: [] for d in demands}
    for slot in slots:
        for model in slot.models:
            own[model].append(slot)
    return tuple(_one(d, sorted(own[d.model], key=slot_order), gpus, catalogue, problem) for d in demands)


def _one(demand: Demand, slots: list[Slot], gpus: dict[GpuKey, Gpu], catalogue: Catalogue, problem: Problem) -> Placed:
    if slots[0].turns:
        return _in_turn(demand, slots[0], problem)
    options = []
    for slot in slots:
        option = catalogue.of_slot(slot, demand, gpus[key_of(slot.device)])
        assert option is not None
        options.append(option)
    per_s = tuple(o.replica_per_s for o in options)
    rule = problem.policy.latency_rule
    worst_ms = max(_predicted_ms(o, demand, sum(per_s), rule) for o in dict.fromkeys(options))
    return Placed(demand.model, tuple(slots), worst_ms, sum(per_s), _reason(options, demand, worst_ms), per_s)


def _in_turn(demand: Demand, slot: Slot, problem: Problem) -> Placed:
    turn = next(t for t in slot.turns if t.model == demand.model)
    cycle_ms, busy_ms, rule = slot.cycle_us / 1000, turn.busy_us / 1000, problem.policy.latency_rule
    per_s = sustained_per_s(demand, turn.batch, cycle_ms, rule)
    worst_ms = predicted_in_turn_ms(cycle_ms, busy_ms, rule)
    share = f"MIG {slot.device.profile}" if slot.device.profile else f"{slot.compute_percent} %"
    reason = (
        f"takes turns with {len(slot.turns) - 1} others on {share}: batch {turn.batch} of {busy_ms:.3g} ms in every "
        f"{cycle_ms:.4g} ms: predicted p{demand.percentile:g} {worst_ms:.3g} of {demand.latency_ms:g} ms, "
        f"{demand.requests_per_s:.4g} of {per_s:.4g} requests/s"
    )
    return Placed(demand.model, (slot,), worst_ms, per_s, reason, (per_s,))


def _predicted_ms(option: Option, demand: Demand, total_per_s: float, rule: LatencyRule) -> float:
    own_per_s = demand.requests_per_s * option.replica_per_s / total_per_s
    return predicted_ms(option, replace(demand, requests_per_s=own_per_s), rule, replicas=1)


def _reason(options: list[Option], demand: Demand, predicted: float) -> str:
    kinds = []
    for option in sorted(dict.fromkeys(options)):
        share = f"MIG {option.mig}" if option.mig else f"{option.percent} %"
        instances = f" x {option.instances} instances" if option.instances > 1 else ""
        kinds.append(f"{options.count(option)} x {share} of {option.product}, batch {option.batch}{instances}")
    total = sum(o.replica_per_s for o in options)
    return (
        f"{'; '.join(kinds)}: predicted p{demand.percentile:g} {predicted:.3g} of {demand.latency_ms:g} ms, "
        f"{demand.requests_per_s:.4g} of {total:.4g} requests/s ({demand.requests_per_s / total:.0%})"
    )
