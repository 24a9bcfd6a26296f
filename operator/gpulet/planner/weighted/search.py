"""The cheapest weighted plan of models that all have to fit, changing as little as that allows."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from gpulet.model.demand import ModelId
from gpulet.model.plan import BoundKind, Problem
from gpulet.planner.assign import Fleet, cost_of
from gpulet.planner.eligibility import Rules
from gpulet.planner.packing import GpuKey, Packing, key_of
from gpulet.planner.search import Found, Nothing
from gpulet.planner.weighted.aggregate import Aggregate, aggregate, size_of
from gpulet.planner.weighted.catalogue import Catalogue
from gpulet.planner.weighted.descent import SLACKS, Descent
from gpulet.planner.weighted.layout import Columns, cost_of_columns, layout_of
from gpulet.planner.weighted.market import Floats, Ints, Market, market_of
from gpulet.planner.weighted.patterns import Patterns, patterns_of, with_previous
from gpulet.planner.weighted.prices import Prices, prices_of
from gpulet.planner.weighted.seats import Seating, covered
from gpulet.planner.weighted.sharing import bound_with_turns, with_sharing
from gpulet.planner.weighted.standing import COVERED, Held, keep, standing

_PROVABLE = 300
"""Integers of an aggregated program that is always solved: mostly in a tenth of a second."""
_WORTH_TRYING = 900
"""Integers of one that is solved if the fast method is not at its bound."""
_FEW = 12
"""Models that lack something are completed by best fit; if more do, a new plan close to the old is better."""
_RECUT_PRICES = 2.0
"""Cutting a GPU anew, in moves of replicas."""
_BOUND_TOLERANCE = 1e-4
_EPSILON = 1e-6
COVERS = (
    "replicas",
    "batch",
    "instances",
    "mps",
    "mig",
    "isolation",
    "inventory",
)


class WeightedSearch:
    """One search: a problem whose demands are exactly the models to be placed, each of which fits some GPU."""

    def __init__(self, problem: Problem, rules: Rules, catalogue: Catalogue) -> None:
        self.problem = problem
        self.rules = rules
        self.catalogue = catalogue
        self.fleet = Fleet.of(problem, rules)
        self.market = market_of(problem, self._empty(), self.fleet, catalogue)
        self.held = standing(problem, self._empty(), self.fleet, catalogue) if problem.current else {}
        self.price = problem.policy.move_price
        self.repaired = False
        """Whether somebody was placed by best fit, in another way than the numbers say."""
        self.unit = {sort.price for sort in self.market.sorts} <= {1.0}

    def run(self) -> Found | Nothing:
        """The best plan without turns, or, where policy has it, with turns if that is cheaper."""
        try:
            answer = self._alone()
            if not self._takes_turns() or self.market.impossible():
                return answer
            return with_sharing(self.problem, self.rules, self.catalogue, self.fleet, self.market, answer)
        except (ArithmeticError, ValueError) as error:
            return self._by_best_fit(f"the solver failed ({error}): kept and placed by best fit, bound by volume alone")

    def _by_best_fit(self, why: str) -> Found | Nothing:
        """A valid plan without any program: what exists, then the others, the largest first."""
        self.repaired = True
        packing = self._empty()
        kept = self._completed(packing, keep(packing, self.held, self.problem.demands))
        if kept is None:
            return Nothing(proven=False)
        cost = cost_of(kept, self.fleet)
        return Found(kept.all_slots(), cost, min(self._rounded(self._volume()), cost), COVERS, "volume", (why,))

    def _volume(self) -> float:
        """What all rates take if every slot could be used in parts, each at its nominal weight."""
        weight = np.zeros(self.market.kinds)
        for block in self.market.blocks:
            # Columns that are not listed fill a device at most, percent by percent.
            most = max(float(np.dot(c, block.weights)) for c in block.columns) if block.complete else 1.0
            weight[block.kinds] = block.weights / most * self.market.price(block)
        with np.errstate(divide="ignore"):
            cheapest = np.where(self.market.per_s > 0, weight / self.market.per_s, np.inf).min(axis=1)
        return float((self.market.rates * cheapest).sum())

    def _alone(self) -> Found | Nothing:
        """Keep what exists if nothing is known to be cheaper; else the cheaper, moves counted."""
        if self.market.impossible():
            return Nothing(proven=True)
        patterns = patterns_of(self.market)
        prices = prices_of(self.market, patterns)
        exact = self._exact(_PROVABLE)
        if not exact.feasible:
            return Nothing(proven=True)
        if self._bound(prices, exact) > self._all() + _EPSILON:
            return Nothing(proven=False)
        base = self._base(patterns, self._bound(prices, exact))
        if base is not None and cost_of(base, self.fleet) <= self._bound(prices, exact) + _EPSILON:
            return self._found(base, prices, exact)
        replicas, columns = self._fresh(patterns, prices)
        if self._dearer(replicas, columns, self._bound(prices, exact)) and exact.columns is None:
            exact = self._exact(_WORTH_TRYING)
        if exact.columns is not None and exact.replicas is not None and self._dearer(replicas, columns, exact.cost):
            replicas, columns = _trimmed(self.market, exact.replicas), exact.columns
        best = self._better(base, replicas, columns)
        return self._found(best, prices, exact) if best is not None else Nothing(proven=not exact.feasible)

    def _bound(self, prices: Prices, exact: Aggregate) -> float:
        return self._rounded(exact.bound) if _proves(prices, exact) else self._whole(prices)

    def _whole(self, prices: Prices) -> float:
        """Whole GPUs, of every island of models that share GPUs with no others."""
        if not self.unit or prices.rent.any():
            return self._rounded(prices.bound)
        parts = np.bincount(self.market.islands(), weights=prices.least)
        return float(np.ceil(parts - _BOUND_TOLERANCE).sum())

    def _dearer(self, replicas: Ints, columns: Columns, cost: float) -> bool:
        """Whether an answer lacks slots, or costs more than ``cost``."""
        return _short(self.market, replicas, columns) or cost_of_columns(self.market, columns) > cost + _EPSILON

    def _takes_turns(self) -> bool:
        return self.problem.policy.time_sharing and not self.market.uniform

    def bound(self) -> float:
        """No plan costs less."""
        patterns = patterns_of(self.market)
        if self._takes_turns():
            return self._rounded(bound_with_turns(self.market, patterns, self.catalogue, self.problem.policy))
        return self._whole(prices_of(self.market, patterns))

    def impossible(self) -> bool:
        """Whether all models together are known not to fit."""
        if self.market.impossible():
            return True
        return self.bound() > self._all() + _EPSILON

    def _all(self) -> float:
        """Price of all GPUs."""
        return sum(sort.price * len(sort.keys) for sort in self.market.sorts)

    def _empty(self) -> Packing:
        return Packing(self.problem, self.rules)

    def _rounded(self, bound: float) -> float:
        """A bound of whole GPUs is a whole number."""
        return float(math.ceil(bound - _BOUND_TOLERANCE)) if self.unit else bound - _BOUND_TOLERANCE

    def _found(self, packing: Packing, prices: Prices, exact: Aggregate) -> Found:
        cost = cost_of(packing, self.fleet)
        split = ("one option per model", "even split") if self.market.uniform else ("mixed sizes", "weighted split")
        covers = (*split, *(c for c in COVERS if c not in self.market.relaxed))
        # Of uniform replicas the family of patterns has every one there is.
        kind: BoundKind = "proven" if self.market.uniform or _proves(prices, exact) else "pattern"
        return Found(packing.all_slots(), cost, min(self._bound(prices, exact), cost), covers, kind)

    def _exact(self, integers: int) -> Aggregate:
        """The referee where it is quick; else nothing is known."""
        listed = all(block.complete for block in self.market.blocks)
        if listed and not self.market.uniform and size_of(self.market) <= integers:
            return aggregate(self.market)
        return Aggregate(feasible=True)

    def _base(self, patterns: Patterns, bound: float) -> Packing | None:
        """What exists, made whole: by best fit if little is missing, else by a plan in which moves cost."""
        if not self.problem.current:
            return None
        packing = self._empty()
        missing = keep(packing, self.held, self.problem.demands)
        if not missing:
            return packing
        kept = self._completed(packing, missing) if len(missing) <= _FEW else None
        if kept is not None and cost_of(kept, self.fleet) <= bound + _EPSILON:
            return kept
        close = self._close_to_present(patterns)
        if kept is None or close is None:
            return kept or close
        return min(kept, close, key=lambda p: cost_of(p, self.fleet) + self.price * self._moves(p))

    def _completed(self, packing: Packing, missing: Mapping[ModelId, float]) -> Packing | None:
        index = {d.model: i for i, d in enumerate(self.market.demands)}
        order = sorted(missing, key=lambda m: (-missing[m], m))
        if all(covered(packing, self.fleet, self.market, index[m], self.held) for m in order):
            return packing
        return None

    def _moves(self, packing: Packing) -> int:
        return len(set(packing.all_slots()) - set(self.problem.current))

    def _close_to_present(self, patterns: Patterns) -> Packing | None:
        """A plan in which every replica that is not there yet, or goes, costs; and so does cutting a GPU anew."""
        present = self._present()
        covers = (present * self.market.per_s).sum(axis=1) >= self.market.rates * COVERED
        widened = with_previous(patterns, present, covers)
        extra: Floats = self.price * np.abs(widened.counts - present[widened.model]).sum(axis=1)
        prices = prices_of(self.market, widened, extra)
        replicas = Descent(self.market, widened, prices, extra).run()
        columns = layout_of(self.market, replicas, self._present_columns(), recut_price=_RECUT_PRICES * self.price)
        return self._seated(replicas, columns, self.held)

    def _seated(self, replicas: Ints, columns: Columns, held: Mapping[ModelId, list[Held]]) -> Packing | None:
        seating = Seating(self.market, self._empty(), self.fleet, held)
        packing = seating.run(replicas, columns)
        self.repaired |= seating.repaired
        return packing

    def _present(self) -> Ints:
        """Models x kinds: replicas that exist and may stay, no more than are needed."""
        packing = self._empty()
        keep(packing, self.held, self.problem.demands)
        seating = Seating(self.market, packing, self.fleet, self.held)
        result = np.zeros(self.market.per_s.shape, dtype=np.int64)
        for index, demand in enumerate(self.market.demands):
            for slot in packing.slots[demand.model]:
                kind = seating.kind_of(slot, index)
                if kind is not None:
                    result[index, kind] += 1
        return result

    def _present_columns(self) -> Columns:
        """The columns that present GPUs are cut or shared in; a GPU with holes counts as the tightest around it."""
        there: dict[GpuKey, dict[tuple[str, int], int]] = defaultdict(lambda: defaultdict(int))
        for slot in set(self.problem.current):
            there[key_of(slot.device)][slot.device.profile or "", slot.compute_percent] += 1
        found: dict[tuple[int, tuple[int, ...]], int] = defaultdict(int)
        sort_of = {key: i for i, sort in enumerate(self.market.sorts) for key in sort.keys}
        for key, shares in sorted(there.items()):
            for index, block in enumerate(self.market.blocks):
                if block.sort != sort_of.get(key) or not set(shares) <= set(block.shares):
                    continue
                counts = tuple(shares.get(s, 0) for s in block.shares)
                around = [c for c in block.columns if all(a >= b for a, b in zip(c, counts, strict=True))]
                if around:
                    found[index, min(around, key=lambda c: (sum(c), c))] += 1
                break
        return found

    def _fresh(self, patterns: Patterns, prices: Prices) -> tuple[Ints, Columns]:
        """The best of some descents, whatever exists now."""
        best: tuple[tuple[bool, float], Ints, Columns] | None = None
        bound = self._whole(prices)
        for slack in SLACKS:
            replicas = Descent(self.market, patterns, prices, slack=slack).run()
            columns = layout_of(self.market, replicas)
            rank = (_short(self.market, replicas, columns), cost_of_columns(self.market, columns))
            if best is None or rank < best[0]:
                best = rank, replicas, columns
            if not rank[0] and rank[1] <= bound + _EPSILON:
                break
        assert best is not None
        return best[1], best[2]

    def _better(self, base: Packing | None, replicas: Ints, columns: Columns) -> Packing | None:
        """A fresh start saves GPUs but moves many: the base stays unless enough is saved for the moves."""
        if base is None:
            return self._seated(replicas, columns, self.held)
        cost = cost_of(base, self.fleet)
        if cost - cost_of_columns(self.market, columns) <= _EPSILON:
            return base
        stays = replace(self.problem, current=base.all_slots())
        held = standing(stays, self._empty(), self.fleet, self.catalogue)
        new = self._seated(replicas, columns, held)
        if new is None:
            return base
        moves = len(set(new.all_slots()) - set(base.all_slots()))
        saved = cost - cost_of(new, self.fleet)
        return new if saved > _EPSILON and saved >= self.price * moves else base


def _proves(prices: Prices, exact: Aggregate) -> bool:
    """Whether the referee knows more than the prices: its bound holds for every mix, so that it goes first."""
    return exact.replicas is not None or exact.bound > prices.bound


def _short(market: Market, replicas: Ints, columns: Columns) -> bool:
    """Whether a layout lacks slots for some replica."""
    offered = np.zeros(market.kinds, dtype=np.int64)
    for (index, column), number in columns.items():
        offered[market.blocks[index].kinds] += number * np.array(column)
    return bool((replicas.sum(axis=0) > offered).any())


def _trimmed(market: Market, replicas: Ints) -> Ints:
    """Replicas that nobody needs go: the exact program does not mind them where a slot is free."""
    result = replicas.copy()
    for model, rate in enumerate(market.rates):
        carried = float(market.per_s[model] @ result[model])
        for kind in np.argsort(market.per_s[model], kind="stable"):
            while result[model, kind] and carried - market.per_s[model, kind] >= rate * COVERED:
                result[model, kind] -= 1
                carried -= market.per_s[model, kind]
    return result
