"""The aggregated program: replicas per model and kind, GPUs per column, all at once. Exact, for small problems.

Its dual bound is proven over every mix of kinds, not only over a family of patterns: it is the referee of the fast
method, in the product for small problems and in tests for larger ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gpulet.planner.solver import Program
from gpulet.planner.weighted.layout import Columns, cost_of_columns
from gpulet.planner.weighted.market import Ints, Market

_NODES = 300


@dataclass(frozen=True)
class Aggregate:
    feasible: bool
    """False: proven that not all models fit the GPUs there are."""
    bound: float = 0.0
    """No plan costs less."""
    replicas: Ints | None = None
    """Models x kinds; None if none was found within the limit."""
    columns: Columns | None = None
    cost: float = math.inf
    """Of the columns."""


def size_of(market: Market) -> int:
    """Integers that the program would have."""
    return int((market.per_s > 0).sum()) + sum(len(block.columns) for block in market.blocks)


def aggregate(market: Market, *, nodes: int = _NODES) -> Aggregate:
    """Only for markets whose columns are all listed."""
    program = Program()
    number: dict[tuple[int, int], int] = {}
    for model, rate in enumerate(market.rates):
        terms = {}
        for kind in np.flatnonzero(market.per_s[model] > 0):
            # Scaled by the rate: rows of like size. Slightly eased, as HiGHS' own tolerance is.
            carried = float(market.per_s[model, kind] / rate)
            number[model, int(kind)] = program.variable(high=float(math.ceil(1 / carried - 1e-9)))
            terms[number[model, int(kind)]] = carried
        program.row(terms, low=1.0 - 1e-9)
    counters = {
        (index, column): program.variable(cost=market.price(block), high=float(len(market.sorts[block.sort].keys)))
        for index, block in enumerate(market.blocks)
        for column in block.columns
    }
    _slots(program, market, number, counters)
    unit = {sort.price for sort in market.sorts} == {1.0}
    answer = program.minimise(absolute_gap=0.999 if unit else 1e-6, nodes=nodes)
    if answer.infeasible:
        return Aggregate(feasible=False)
    if answer.values is None:
        return Aggregate(True, answer.bound)
    replicas = np.zeros(market.per_s.shape, dtype=np.int64)
    for place, variable in number.items():
        replicas[place] = round(answer.values[variable])
    columns = {key: round(answer.values[v]) for key, v in counters.items() if round(answer.values[v])}
    covered = (market.per_s * replicas).sum(axis=1) >= market.rates * (1 - 1e-6)
    if not covered.all():
        return Aggregate(True, answer.bound)
    return Aggregate(True, answer.bound, replicas, columns, cost_of_columns(market, columns))


def _slots(
    program: Program,
    market: Market,
    number: dict[tuple[int, int], int],
    counters: dict[tuple[int, tuple[int, ...]], int],
) -> None:
    """Slots that are used are offered, and there are only so many GPUs of a sort."""
    takers: dict[int, dict[int, float]] = {}
    for (_, kind), variable in number.items():
        takers.setdefault(kind, {})[variable] = 1.0
    for index, block in enumerate(market.blocks):
        for offset in range(len(block.shares)):
            offered = {counters[index, c]: -float(c[offset]) for c in block.columns if c[offset]}
            program.row(takers.get(block.first + offset, {}) | offered, high=0)
        for held, _ in zip(market.held, block.extra, strict=False):
            takes = {v: float(held[m, k]) for (m, k), v in number.items() if block.kinds.start <= k < block.kinds.stop}
            program.row(takes | {counters[index, c]: -1.0 for c in block.columns}, high=0)
    for position, sort in enumerate(market.sorts):
        own = {v: 1.0 for (index, _), v in counters.items() if market.blocks[index].sort == position}
        program.row(own, high=float(len(sort.keys)))
