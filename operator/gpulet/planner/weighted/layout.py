"""How many GPUs of each sort are cut or shared in which way, for given numbers of slots."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gpulet.planner.solver import Program
from gpulet.planner.weighted.market import Ints, Market
from gpulet.planner.weighted.multisets import packed

Columns = Mapping[tuple[int, tuple[int, ...]], int]
"""(block, column) -> GPUs."""
_NODES = 500
_SHORT = 3.0
"""Cost of a slot that finds no GPU, in GPUs: seats look for another way."""


def layout_of(market: Market, replicas: Ints, previous: Columns | None = None, *, recut_price: float = 0.0) -> Columns:
    """The cheapest columns that offer the slots of all replicas, as far as there are GPUs.

    ``previous``: columns of the present GPUs, and ``recut_price``: what each one more or less of a kind counts.
    """
    wanted = replicas.sum(axis=0)
    program = Program()
    counters: dict[tuple[int, tuple[int, ...]], int] = {}
    dearest = max(sort.price for sort in market.sorts)
    for index, block in enumerate(market.blocks):
        slots = wanted[block.kinds]
        if not slots.any():
            continue
        columns = list(block.columns)
        if not block.complete:
            columns = list(dict.fromkeys([*columns, *packed(block.percents, block.capacity, [int(n) for n in slots])]))
        for column in columns:
            counters[index, column] = program.variable(cost=market.price(block))
        for kind in np.flatnonzero(slots):
            short = program.variable(cost=_SHORT * dearest, integer=False)
            offered = {counters[index, c]: float(c[kind]) for c in columns if c[kind]}
            program.row(offered | {short: 1.0}, low=float(slots[kind]))
    _hold_memory(program, market, counters, replicas, _SHORT * dearest)
    for number, sort in enumerate(market.sorts):
        own = {v: 1.0 for (index, _), v in counters.items() if market.blocks[index].sort == number}
        program.row(own, high=float(len(sort.keys)))
    if previous is not None and recut_price > 0:
        _hold(program, counters, previous, recut_price)
    gap = 0.999 if recut_price == 0 and {s.price for s in market.sorts} == {1.0} else 1e-3
    answer = program.minimise(absolute_gap=gap, nodes=_NODES)
    if answer.values is None:
        return {}
    return {key: round(answer.values[v]) for key, v in counters.items() if round(answer.values[v])}


def _hold_memory(
    program: Program, market: Market, counters: Mapping[tuple[int, tuple[int, ...]], int], replicas: Ints, short: float
) -> None:
    """Memory and clients of whole GPUs, by volume."""
    held = market.widened(replicas, np.arange(len(replicas))).sum(axis=0)
    for index, block in enumerate(market.blocks):
        for extra in block.extra:
            own = {v: 1.0 for (i, _), v in counters.items() if i == index}
            missing = program.variable(cost=short, integer=False)
            program.row(own | {missing: 1.0}, low=float(held[extra]))


def _hold(
    program: Program, counters: Mapping[tuple[int, tuple[int, ...]], int], previous: Columns, price: float
) -> None:
    for key, counter in counters.items():
        more, fewer = program.variable(cost=price, integer=False), program.variable(cost=price, integer=False)
        now = float(previous.get(key, 0))
        program.row({counter: 1.0, more: -1.0, fewer: 1.0}, low=now, high=now)


def cost_of_columns(market: Market, columns: Columns) -> float:
    return sum(number * market.price(market.blocks[index]) for (index, _), number in columns.items())
