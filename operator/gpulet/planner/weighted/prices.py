"""What a slot of each kind costs, and with it a lower bound.

The dual of the pattern program is a concave function of one price per kind (and one per sort whose number is limited):

    maximise  sum over models of min over patterns (price . counts + extra)  -  sum over sorts of rent x number of GPUs
    where     no column of slots is worth more than its GPU: price . column <= price of the GPU + rent of its sort

Any such prices bound the cost of every plan made of the patterns from below. Kelley's cutting planes find the best in a
few steps, because there are few kinds, however many models there are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulet.planner.solver import Program
from gpulet.planner.weighted.market import Block, Bools, Floats, Ints, Market
from gpulet.planner.weighted.multisets import best_multiset
from gpulet.planner.weighted.patterns import Patterns

_GROUPS = 8
_STEPS = 150
_STEADY_STEPS = 25
_TOLERANCE = 1e-6
_RENT_LIMIT = 100.0
"""Rents beyond this times the dearest GPU: the models do not fit, and how much they do not fit says nothing more."""


@dataclass(frozen=True)
class Prices:
    slot: Floats
    """Per kind, then per memory and clients of a whole GPU where these may bind, in GPUs (or their price)."""
    rent: Floats
    """Per sort: what having one more of its GPUs would be worth."""
    bound: float
    """No plan of the patterns costs less."""
    least: Floats
    """Per model, of that."""


def prices_of(market: Market, patterns: Patterns, extra: Floats | None = None) -> Prices:
    """``extra``: cost of each pattern beyond its slots, such as that of moves."""
    return _Kelley(market, patterns, extra).run()


class _Kelley:
    def __init__(self, market: Market, patterns: Patterns, extra: Floats | None) -> None:
        self.market = market
        self.counts = market.widened(patterns.counts, patterns.model)
        self.patterns = patterns
        self.extra = np.zeros(len(self.counts)) if extra is None else extra
        models = len(patterns.first) - 1
        self.groups = min(_GROUPS, models) if models > 40 else 1
        self.group = np.arange(models) % self.groups
        self.number = np.array([float(len(sort.keys)) for sort in market.sorts])
        # The rent of a single sort is either nothing or a proof that not all models fit; the bound says so as well.
        self.rented = len(market.sorts) > 1
        self.cuts: list[tuple[int, Floats, float]] = []

    def run(self) -> Prices:
        slot, rent = self._start()
        best = Prices(slot, rent, -np.inf, np.zeros(0))
        for step in range(_STEPS):
            least = self._least(slot)
            value = float(least.sum() - rent @ self.number)
            if value > best.bound:
                best = Prices(slot, rent, value, least)
            slot, rent, ceiling = self._master()
            if ceiling - best.bound <= max(_TOLERANCE, 1e-9 * abs(best.bound)):
                break
            if step < _STEADY_STEPS:
                slot, rent = 0.7 * slot + 0.3 * best.slot, 0.7 * rent + 0.3 * best.rent
            slot = self._feasible(slot, rent)
        return best

    def _start(self) -> tuple[Floats, Floats]:
        slot = np.zeros(self.market.width)
        for block in self.market.blocks:
            slot[block.kinds] = block.weights * self.market.price(block)
        rent = np.zeros(len(self.market.sorts))
        return self._feasible(slot, rent), rent

    def _feasible(self, slot: Floats, rent: Floats) -> Floats:
        """Prices scaled down, block by block, until no column is worth more than its GPU; new columns are kept."""
        slot = slot.copy()
        for block in self.market.blocks:
            limit = self.market.price(block) + rent[block.sort]
            worth = _most_worth(block, slot[block.kinds]) + float(slot[list(block.extra)].sum())
            if worth > limit:
                slot[block.index] *= limit / worth
        return slot

    def _least(self, slot: Floats) -> Floats:
        """What each model costs at these prices; the patterns that attain it become a cut per group of models."""
        first = self.patterns.first[:-1]
        cost = self.counts @ slot + self.extra
        least = np.minimum.reduceat(cost, first)
        cheapest = _first_at(cost <= np.repeat(least, np.diff(self.patterns.first)) + 1e-12, self.patterns.first)
        for group in range(self.groups):
            of_group = cheapest[self.group == group]
            self.cuts.append((group, self.counts[of_group].sum(axis=0), float(self.extra[of_group].sum())))
        result: Floats = least
        return result

    def _master(self) -> tuple[Floats, Floats, float]:
        """The best prices as far as the cuts know, and what the bound could be there at most."""
        program = Program()
        market = self.market
        dearest = max(sort.price for sort in market.sorts)
        slot = [program.variable(high=dearest * (1 + _RENT_LIMIT), integer=False) for _ in range(market.width)]
        high = dearest * _RENT_LIMIT if self.rented else 0.0
        rent = [program.variable(cost=n, high=high, integer=False) for n in self.number]
        share = [program.variable(cost=-1.0, high=1e9, integer=False) for _ in range(self.groups)]
        for block in market.blocks:
            for column in block.columns:
                terms = {slot[block.first + k]: float(n) for k, n in enumerate(column) if n}
                terms |= {slot[extra]: 1.0 for extra in block.extra}
                program.row(terms | {rent[block.sort]: -1.0}, high=market.price(block))
        for group, counts, cost in self.cuts:
            terms = {slot[k]: -float(counts[k]) for k in np.flatnonzero(counts)}
            program.row(terms | {share[group]: 1.0}, high=cost)
        values = program.relaxed()
        ceiling = float(values[share].sum() - values[rent] @ self.number)
        return np.maximum(values[slot], 0.0), np.maximum(values[rent], 0.0), ceiling


def _most_worth(block: Block, slot: Floats) -> float:
    """The value of the best column at these prices; a column that is not listed yet is added."""
    if block.complete:
        return max((float(np.dot(column, slot)) for column in block.columns), default=0.0)
    worth, column = best_multiset(block.percents, block.capacity, slot)
    if column not in block.columns and any(column):
        block.columns.append(column)
    return worth


def _first_at(chosen: Bools, first: Ints) -> Ints:
    """Per model the index of its first chosen pattern."""
    where = np.flatnonzero(chosen)
    return where[np.searchsorted(where, first[:-1])]
