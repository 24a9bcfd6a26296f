"""Time sharing: the weighted plan with and without turns, and the better of the two."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from gpulet.model.demand import ModelId
from gpulet.model.plan import PlannerPolicy, Problem, Slot
from gpulet.planner.assign import Fleet, cost_of
from gpulet.planner.eligibility import Rules
from gpulet.planner.improve import packing_of
from gpulet.planner.packing import Packing, key_of, slot_order
from gpulet.planner.search import Found, Nothing
from gpulet.planner.weighted.bundles import Turners, bundled, kinds_of, volume_patterns
from gpulet.planner.weighted.catalogue import Catalogue
from gpulet.planner.weighted.descent import SLACKS, Descent
from gpulet.planner.weighted.layout import Columns, cost_of_columns, layout_of
from gpulet.planner.weighted.market import Floats, Ints, Market
from gpulet.planner.weighted.patterns import Patterns, patterns_of
from gpulet.planner.weighted.prices import prices_of
from gpulet.planner.weighted.seats import Seating
from gpulet.planner.weighted.standing import keep, standing
from gpulet.planner.weighted.turns import Turns, sustained_per_s

_EPSILON = 1e-6
_BOUND_TOLERANCE = 1e-4
COVERS = ("time sharing on a grid of duty cycles",)


@dataclass(frozen=True)
class _Setting:
    problem: Problem
    rules: Rules
    catalogue: Catalogue
    fleet: Fleet
    market: Market
    turns: Turns

    def empty(self) -> Packing:
        return Packing(self.problem, self.rules)

    def cost(self, packing: Packing) -> float:
        return cost_of(packing, self.fleet)


def with_sharing(
    problem: Problem, rules: Rules, catalogue: Catalogue, fleet: Fleet, market: Market, alone: Found | Nothing
) -> Found | Nothing:
    """``alone``: the answer without turns. The bound covers both: turns enter by volume, hence its name."""
    setting = _Setting(problem, rules, catalogue, fleet, market, Turns(market, catalogue, problem.policy.latency_rule))
    patterns = patterns_of(market)
    prices = prices_of(market, _with_volumes(patterns, setting.turns))
    bound = prices.bound
    if {sort.price for sort in market.sorts} == {1.0}:
        bound = float(math.ceil(bound - _BOUND_TOLERANCE))
    dedicated = packing_of(problem, rules, alone.slots) if isinstance(alone, Found) else None
    present = _present(setting)
    base = present or (dedicated if problem.current else None)
    best = base
    if base is None or setting.cost(base) > bound + _EPSILON:
        best = _cheaper(
            setting, base, [p for p in (dedicated, _fresh(setting, patterns, prices.slot)) if p is not None]
        )
    if best is None:
        return Nothing(proven=False)
    cost = setting.cost(best)
    covers = (*(alone.covers if isinstance(alone, Found) else ()), *COVERS)
    return Found(best.all_slots(), cost, min(bound, cost), covers, "volume")


def bound_with_turns(market: Market, patterns: Patterns, catalogue: Catalogue, policy: PlannerPolicy) -> float:
    """No plan of these patterns and of turns costs less."""
    turns = Turns(market, catalogue, policy.latency_rule)
    return prices_of(market, _with_volumes(patterns, turns)).bound


def _with_volumes(patterns: Patterns, turns: Turns) -> Patterns:
    model, counts = volume_patterns(turns)
    models = np.concatenate([patterns.model, model])
    order = np.argsort(models, kind="stable")
    first = np.searchsorted(models[order], np.arange(len(patterns.first)))
    return Patterns(np.concatenate([patterns.counts.astype(float), counts])[order], first)


def _cheaper(setting: _Setting, base: Packing | None, others: list[Packing]) -> Packing | None:
    """The cheapest; what exists stays unless enough is saved for the moves."""
    if not others:
        return base
    best = min(others, key=setting.cost)
    if base is None:
        return best
    moves = len(set(best.all_slots()) - set(base.all_slots()))
    saved = setting.cost(base) - setting.cost(best)
    return best if saved > _EPSILON and saved >= setting.problem.policy.move_price * moves else base


def _present(setting: _Setting) -> Packing | None:
    """What exists, if it has turns and carries all models as it is."""
    shared = [s for s in sorted(set(setting.problem.current), key=slot_order) if s.turns]
    if not shared:
        return None
    packing = setting.empty()
    served: set[ModelId] = set()
    for slot in shared:
        if not served & set(slot.models) and _still_holds(setting, slot) and packing.fits(slot):
            packing.add(slot)
            served |= set(slot.models)
    held = standing(setting.problem, setting.empty(), setting.fleet, setting.catalogue)
    missing = keep(packing, held, [d for d in setting.problem.demands if d.model not in served])
    return None if missing else packing


def _still_holds(setting: _Setting, slot: Slot) -> bool:
    """Whether all turns of an existing gpulet still carry their models within their objectives."""
    demands = {d.model: d for d in setting.problem.demands}
    room = setting.empty().rooms.get(key_of(slot.device))
    cycle_ms, busy_ms = slot.cycle_us / 1000, 0.0
    for turn in slot.turns:
        demand = demands.get(turn.model)
        if room is None or demand is None or turn.artifact != demand.artifact:
            return False
        share = (room.gpu.product, slot.device.profile or "", slot.compute_percent)
        options = [o for o in setting.catalogue.batches(demand).get(share, ()) if o.batch == turn.batch]
        allowed = setting.fleet.allows(turn.model, room.gpu) and demand.isolation != "None"
        if not options or not allowed:
            return False
        ms = options[0].p99_ms
        carried = sustained_per_s(demand, turn.batch, cycle_ms, setting.problem.policy.latency_rule)
        late = cycle_ms + ms > setting.turns.budget_ms(demand) * (1 + 1e-9)
        if late or carried < demand.requests_per_s * (1 - 1e-9) or ms * 1000 > turn.busy_us + 1:
            return False
        busy_ms += ms
    return busy_ms <= cycle_ms * (1 + 1e-9)


def _fresh(setting: _Setting, patterns: Patterns, prices: Floats) -> Packing | None:
    """Whoever is cheaper by turns takes turns; bundles then weigh in like models with one replica."""
    wide = setting.market.widened(patterns.counts, patterns.model)
    alone = np.minimum.reduceat(wide @ prices, patterns.first[:-1])
    prices = prices[: setting.market.kinds]
    shared = (setting.turns.part * prices[None, :, None]).min(axis=(1, 2))
    takers = [int(m) for m in np.flatnonzero(shared < alone - 1e-9)]
    bundles = bundled(setting.turns, takers, prices)
    bundles = [b for b in bundles if b.cycles and len(b.models) > 1]  # who is alone in a bin needs no turns
    inside = {m for b in bundles for m in b.models}
    best: tuple[float, Ints, Columns] | None = None
    joint = _joint(patterns, inside, bundles, setting.market)
    again = prices_of(setting.market, joint)
    for slack in SLACKS:
        replicas = Descent(setting.market, joint, again, slack=slack).run()
        columns = layout_of(setting.market, replicas)
        cost = cost_of_columns(setting.market, columns)
        if best is None or cost < best[0]:
            best = cost, replicas, columns
    assert best is not None
    seating = Seating(setting.market, setting.empty(), setting.fleet, {}, bundles)
    return seating.run(best[1], best[2])


def _joint(patterns: Patterns, inside: Iterable[int], bundles: list[Turners], market: Market) -> Patterns:
    """Patterns of models (a zero for those that take turns), then of bundles."""
    counts, model = patterns.counts, patterns.model
    gone = np.array(sorted(inside), dtype=np.int64)
    stays = ~np.isin(model, gone)
    parts = [counts[stays], np.zeros((len(gone), market.kinds), dtype=np.int64)]
    owners = [model[stays], gone]
    for number, bundle in enumerate(bundles):
        rows = kinds_of(market, bundle)
        parts.append(rows)
        owners.append(np.full(len(rows), len(market.demands) + number))
    owner = np.concatenate(owners)
    order = np.argsort(owner, kind="stable")
    first = np.searchsorted(owner[order], np.arange(len(market.demands) + len(bundles) + 1))
    return Patterns(np.concatenate(parts)[order], first)
