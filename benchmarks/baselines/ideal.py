"""The ideal: the best that any plan in the space of gpu-lets can do on a small fleet, by exhaustive enumeration.

Every way to cut a GPU into at most two parts, and every way to use a part: saturated by one model, or up to three
models taking turns with any batches. A cycle is as short as its batches allow: a longer one only lowers rates. The
common rate factor is then an integer program over these (``highest_factor``), proven to within ``GAP`` and ``CLOSE``
unless the search tree gets too large: the bound is given too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations

import highspy
import numpy as np
from highspy._core import _Highs

from benchmarks.baselines.surface import EPSILON, Grid, Service, saturated

GAP = 0.01
"""Relative; a factor that is proven to within 1 %."""
CLOSE = 0.01
"""Relative; ways this near to each other count as one, and every bound is raised by it."""
NODES = 50
"""Limit of the search tree."""
WORTH = 0.02
"""Ways that cost more of the factor than this, by the prices of the relaxation, are not tried in whole numbers."""


@dataclass(frozen=True)
class Uses:
    """All ways to use one part of a GPU that no other way beats."""

    size: int
    models: tuple[str, ...]
    rates_per_s: np.ndarray
    """ways x models."""

    def of(self, wanted: Sequence[str]) -> np.ndarray:
        """Those that serve nobody but ``wanted``, in that order of models; ways x wanted."""
        at = [self.models.index(name) for name in wanted]
        others = [i for i in range(len(self.models)) if i not in at]
        rows = self.rates_per_s[(self.rates_per_s[:, others] <= 0).all(axis=1)] if others else self.rates_per_s
        return rows[:, at]


@dataclass(frozen=True)
class Factor:
    """How far all rates can be raised together."""

    reached: float
    bound: float
    """No plan in the space does better."""


def uses(models: Sequence[Service], size: int, *, together: int = 3) -> Uses:
    """Every way to use a share of this size; computed once for all questions about these models."""
    ways: list[np.ndarray] = []
    for number in range(1, together + 1):
        for group in combinations(range(len(models)), number):
            ways.append(_ways(models, size, group))
    return Uses(size, tuple(m.name for m in models), np.concatenate(ways))


def _ways(models: Sequence[Service], size: int, group: tuple[int, ...]) -> np.ndarray:
    """Pareto-best rate vectors of exactly these models on one share."""
    if len(group) == 1:
        full = saturated(models[group[0]], size)
        row = np.zeros((1 if full else 0, len(models)))
        if full:
            row[0, group[0]] = full.per_s
        return row
    latencies = [np.array(models[i].latencies_ms[size]) for i in group]
    axes = np.meshgrid(*(np.arange(1, len(row)) for row in latencies), indexing="ij")
    batches = [axis.ravel() for axis in axes]
    each_ms = [row[b] for row, b in zip(latencies, batches, strict=True)]
    cycle_ms = reduce(np.add, each_ms, np.zeros(len(batches[0])))
    holds = np.isfinite(cycle_ms)
    for i, own_ms in zip(group, each_ms, strict=True):
        holds &= cycle_ms + own_ms <= models[i].objective_ms + EPSILON
    found = np.zeros((int(holds.sum()), len(models)))
    for i, batch in zip(group, batches, strict=True):
        found[:, i] = 1000 * batch[holds] / cycle_ms[holds]
    return _undominated(found)


def _undominated(rows: np.ndarray) -> np.ndarray:
    """Rows that no other row comes up to everywhere, within ``CLOSE``."""
    rows = rows[np.argsort(-rows.sum(axis=1), kind="stable")]
    kept = np.zeros((0, rows.shape[1]))
    for row in rows:
        if not (kept * (1 + CLOSE) >= row).all(axis=1).any():
            kept = np.vstack((kept, row))
    return kept


def highest_factor(
    demands: Sequence[tuple[Service, float]],
    gpus: int,
    grid: Grid,
    table: Mapping[int, Uses],
    *,
    known: float = 0.0,
    gap: float = GAP,
    nodes: int = NODES,
    exact: bool = True,
) -> Factor:
    """Largest f such that f x every rate is served; ``known``: a factor that some plan is known to reach.

    Without ``exact`` only the first, short round: what it reaches may be a little below the ideal, the bound is not.
    """
    program = _program(demands, gpus, grid, table)
    bound, worth = program.relaxed()
    bound *= 1 + CLOSE
    if bound <= known * (1 + gap):
        return Factor(known, max(known, bound))
    # A first round with the ways that the relaxation finds nearly worth their part; then with every way that could
    # still lead above what was reached (its price leaves room up to the bound).
    near = worth >= -WORTH * bound
    reached = max(known, program.whole(near, gap=gap, nodes=nodes)[0])
    if exact:
        kept = worth >= -(bound - reached)
        better, proven = program.whole(kept, gap=gap, nodes=nodes)
        reached = max(reached, better)
        bound = min(bound, max(reached, proven * (1 + CLOSE)))
    return Factor(reached, max(reached, bound))


def factor_bound(demands: Sequence[tuple[Service, float]], gpus: int, grid: Grid, table: Mapping[int, Uses]) -> float:
    """No plan in the space reaches a higher factor: the relaxation alone, in a moment."""
    return _program(demands, gpus, grid, table).relaxed()[0] * (1 + CLOSE)


def _program(demands: Sequence[tuple[Service, float]], gpus: int, grid: Grid, table: Mapping[int, Uses]) -> _Factors:
    asked = [(model.name, rate) for model, rate in demands if rate > 0]
    names, rates = [name for name, _ in asked], np.array([rate for _, rate in asked])
    parts = [table[size].of(names) / rates for size in grid.sizes]
    cuts = [[cut.count(size) for size in grid.sizes] for cut in grid.cuts()]
    return _Factors(parts, np.array(cuts, dtype=float), gpus)


class _Factors:
    """maximise f: sum of ways' rates >= f for every model, ways on a size <= parts of that size, cuts <= GPUs."""

    def __init__(self, parts: Sequence[np.ndarray], cuts: np.ndarray, gpus: int) -> None:
        models, ways = parts[0].shape[1], [len(part) for part in parts]
        total = sum(ways)
        rows = models + len(parts) + 1
        matrix = np.zeros((rows, total + len(cuts) + 1))
        at = 0
        for k, part in enumerate(parts):
            matrix[:models, at : at + ways[k]] = part.T
            matrix[models + k, at : at + ways[k]] = 1.0
            at += ways[k]
        matrix[:models, -1] = -1.0
        matrix[models:-1, total:-1] = -cuts.T
        matrix[-1, total:-1] = 1.0
        self.matrix, self.ways = matrix, total
        self.low = np.array([0.0] * models + [-highspy.kHighsInf] * (len(parts) + 1))
        self.high = np.array([highspy.kHighsInf] * models + [0.0] * len(parts) + [float(gpus)])

    def relaxed(self) -> tuple[float, np.ndarray]:
        """(the bound, what one more unit of each column would add to it: 0 or less)."""
        solver = self._solved(self.matrix, whole=False, gap=0.0, nodes=0)
        if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            raise RuntimeError(f"rate factor: HiGHS ended with {solver.getModelStatus()}")
        return solver.getInfo().objective_function_value, np.array(solver.getSolution().col_dual)

    def whole(self, kept: np.ndarray, *, gap: float, nodes: int) -> tuple[float, float]:
        """(factor reached in whole numbers with the columns ``kept``, its bound)."""
        kept = kept.copy()
        kept[self.ways :] = True
        solver = self._solved(self.matrix[:, kept], whole=True, gap=gap, nodes=nodes)
        info = solver.getInfo()
        solved = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        bound = info.mip_dual_bound if np.isfinite(info.mip_dual_bound) else highspy.kHighsInf
        return (info.objective_function_value if solved else 0.0), bound

    def _solved(self, matrix: np.ndarray, *, whole: bool, gap: float, nodes: int) -> _Highs:
        rows, columns = matrix.shape
        model = highspy.HighsLp()
        model.num_col_, model.num_row_ = columns, rows
        model.sense_ = highspy.ObjSense.kMaximize
        model.col_cost_ = np.array([0.0] * (columns - 1) + [1.0])
        model.col_lower_, model.col_upper_ = np.zeros(columns), np.full(columns, highspy.kHighsInf)
        model.row_lower_, model.row_upper_ = self.low, self.high
        row, column = np.nonzero(matrix)
        model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        model.a_matrix_.start_ = np.concatenate(([0], np.cumsum(np.bincount(row, minlength=rows)))).astype(np.int32)
        model.a_matrix_.index_ = column.astype(np.int32)
        model.a_matrix_.value_ = matrix[row, column]
        # The core class: the Python one around it prints a banner before it can be silenced.
        solver = _Highs()
        solver.setOptionValue("output_flag", False)
        if whole:
            kinds = [highspy.HighsVarType.kInteger] * (columns - 1)
            model.integrality_ = [*kinds, highspy.HighsVarType.kContinuous]
            solver.setOptionValue("mip_rel_gap", gap)
            solver.setOptionValue("mip_max_nodes", nodes)
        solver.passModel(model)
        solver.run()
        return solver
