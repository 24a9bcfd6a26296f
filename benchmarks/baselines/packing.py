"""Bins for items of fixed size, and plain first-fit decreasing of replicas, with bounds.

First fit, best fit and their decreasing forms: Johnson et al. (1974). The bound is the linear program of Gilmore and
Gomory (1961): every way to fill a bin is a column.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import highspy
import numpy as np
from highspy._core import _Highs

from benchmarks.baselines.surface import EPSILON


def first_fit(items: Iterable[int], capacity: int) -> list[list[int]]:
    """Bins, each item in the first that has room, in the order given."""
    return _fit(items, capacity, fullest=False)


def best_fit(items: Iterable[int], capacity: int) -> list[list[int]]:
    """Bins, each item in the fullest that has room (the first of equals), in the order given."""
    return _fit(items, capacity, fullest=True)


def decreasing(items: Iterable[int]) -> list[int]:
    return sorted(items, reverse=True)


def _fit(items: Iterable[int], capacity: int, *, fullest: bool) -> list[list[int]]:
    bins: list[list[int]] = []
    free: list[int] = []
    for item in items:
        if not 0 < item <= capacity:
            raise ValueError(f"item {item}: sizes are from 1 to {capacity}")
        possible = [i for i, left in enumerate(free) if left >= item]
        if not possible:
            bins.append([item])
            free.append(capacity - item)
            continue
        chosen = min(possible, key=lambda i: free[i]) if fullest else possible[0]
        bins[chosen].append(item)
        free[chosen] -= item
    return bins


def volume(items: Iterable[int], capacity: int) -> float:
    return sum(items) / capacity


def fillings(sizes: Mapping[int, int], capacity: int) -> Iterator[tuple[int, ...]]:
    """Maximal ways to fill one bin, as counts in ascending order of size; ``sizes``: size -> how many there are."""
    order = sorted(sizes)

    def extend(at: int, left: int, counts: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if at < 0:
            if all(count == sizes[s] or s > left for s, count in zip(order, counts, strict=True)):
                yield counts
            return
        for count in range(min(sizes[order[at]], left // order[at]), -1, -1):
            yield from extend(at - 1, left - count * order[at], (count, *counts))

    return extend(len(order) - 1, capacity, ())


def bins_bound(items: Iterable[int], capacity: int, *, whole: bool = False) -> float:
    """No packing has fewer bins. Of Gilmore and Gomory's program; with ``whole``, of its integer form."""
    demand = Counter(items)
    if not demand:
        return 0.0
    columns = np.array(list(fillings(demand, capacity)), dtype=float).T
    return least_columns(columns, [float(demand[s]) for s in sorted(demand)], whole=whole)


def least_columns(columns: np.ndarray, needs: Sequence[float], *, whole: bool) -> float:
    """Fewest columns whose sum is at least ``needs``, or the proven bound of that. Raises RuntimeError without one."""
    rows, number = columns.shape
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = number, rows
    model.col_cost_ = np.ones(number)
    model.col_lower_, model.col_upper_ = np.zeros(number), np.full(number, highspy.kHighsInf)
    model.row_lower_, model.row_upper_ = np.array(needs), np.full(rows, highspy.kHighsInf)
    model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    model.a_matrix_.start_ = np.arange(rows + 1, dtype=np.int32) * number
    model.a_matrix_.index_ = np.tile(np.arange(number, dtype=np.int32), rows)
    model.a_matrix_.value_ = columns.ravel()
    if whole:
        model.integrality_ = [highspy.HighsVarType.kInteger] * number
    solver = _Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("mip_abs_gap", 0.999)
    solver.setOptionValue("mip_rel_gap", 0.0)
    solver.passModel(model)
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        raise RuntimeError(f"bound of {rows} sizes: HiGHS ended with {solver.getModelStatus()}")
    info = solver.getInfo()
    return float(math.ceil(info.mip_dual_bound - 1e-6)) if whole else float(info.objective_function_value)


def first_fit_decreasing_replicas(
    throughputs: Sequence[Sequence[float]],
    rates_per_s: Sequence[float],
    weights: Sequence[float],
    columns: Sequence[Sequence[int]],
) -> int:
    """GPUs of plain first-fit decreasing with the kind of share chosen per model beforehand.

    ``throughputs[m][k]``: requests per second of one replica of model m on kind k, 0 where it does not run;
    ``weights[k]``: part of a GPU that kind k nominally takes, ascending; ``columns``: how many of each kind a GPU can
    be cut into. Per model the kind with the best throughput for its weight, and for the remainder one replica of the
    smallest kind that carries it; largest replicas first, each on the fullest GPU where it still fits.
    """
    replicas: list[int] = []
    for row, rate in zip(throughputs, rates_per_s, strict=True):
        best = max(range(len(row)), key=lambda k: row[k] / weights[k])
        number = math.floor(rate / row[best])
        replicas += [best] * number
        left = rate - number * row[best]
        if left > EPSILON:
            replicas.append(next(k for k in range(len(row)) if row[k] >= left - EPSILON))
    replicas.sort(key=lambda k: -weights[k])
    # GPUs that hold the same are interchangeable: counted, not listed.
    gpus: Counter[tuple[int, ...]] = Counter()
    for kind in replicas:
        fitting = [gpu for gpu in gpus if _cut_holds(_with(gpu, kind), columns)]
        before = max(fitting, key=lambda gpu: sum(n * w for n, w in zip(gpu, weights, strict=True)), default=None)
        if before is not None:
            gpus[before] -= 1
            gpus += Counter()  # drops what there is none of
        gpus[_with(before or (0,) * len(weights), kind)] += 1
    return gpus.total()


def _with(gpu: Sequence[int], kind: int) -> tuple[int, ...]:
    return tuple(n + (k == kind) for k, n in enumerate(gpu))


def _cut_holds(wanted: Sequence[int], columns: Sequence[Sequence[int]]) -> bool:
    return any(all(w <= c for w, c in zip(wanted, column, strict=True)) for column in columns)
