"""Integer programs for HiGHS, with the answers checked.

HiGHS' traps: the option ``threads`` is never set (a second value in one process returns nothing, without an error);
integer optima come back as z - 4e-12 (so values are rounded, never cut); at a limit the values may be missing. Limits
are counts of nodes, never seconds: the same program gives the same answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import highspy
import numpy as np
from highspy._core import _Highs
from numpy.typing import NDArray

INFINITY = highspy.kHighsInf
_INTEGRALITY_TOLERANCE = 1e-5


@dataclass(frozen=True)
class Answer:
    """What HiGHS found of a minimisation."""

    infeasible: bool
    """Proven: there is no solution."""
    bound: float
    """No solution is cheaper."""
    objective: float | None = None
    values: tuple[float, ...] | None = None
    """Of all variables, those of integers rounded; None if no solution was found within the limit."""
    optimal: bool = False
    """Within the gap that was asked for."""


class Program:
    """Variables and rows, to be minimised."""

    def __init__(self) -> None:
        self._cost: list[float] = []
        self._low: list[float] = []
        self._high: list[float] = []
        self._integer: list[bool] = []
        self._row_low: list[float] = []
        self._row_high: list[float] = []
        self._start: list[int] = [0]
        self._index: list[int] = []
        self._value: list[float] = []

    @property
    def variables(self) -> int:
        return len(self._cost)

    def variable(self, *, cost: float = 0.0, high: float = INFINITY, integer: bool = True) -> int:
        """A new variable from 0 to ``high``; its index is returned."""
        self._cost.append(cost)
        self._low.append(0.0)
        self._high.append(high)
        self._integer.append(integer)
        return len(self._cost) - 1

    def row(self, terms: Mapping[int, float], *, low: float = -INFINITY, high: float = INFINITY) -> None:
        """low <= sum of coefficient x variable <= high."""
        self._row_low.append(low)
        self._row_high.append(high)
        for variable, coefficient in sorted(terms.items()):
            self._index.append(variable)
            self._value.append(coefficient)
        self._start.append(len(self._index))

    def set_costs(self, costs: Mapping[int, float]) -> None:
        """Costs of variables, instead of those they were made with."""
        for variable, cost in costs.items():
            self._cost[variable] = cost

    def minimise(self, *, absolute_gap: float, nodes: int) -> Answer:
        """``nodes``: limit of the search tree; the bound holds even if it is reached."""
        # The core class: the Python one around it prints a banner before it can be told not to.
        solver = _Highs()
        solver.setOptionValue("output_flag", False)
        solver.setOptionValue("mip_abs_gap", absolute_gap)
        solver.setOptionValue("mip_rel_gap", 0.0)
        solver.setOptionValue("mip_max_nodes", nodes)
        if solver.passModel(self._model()) == highspy.HighsStatus.kError:
            raise ValueError("the integer program was not accepted by HiGHS: a coefficient is not finite")
        solver.run()
        return self._answer(solver)

    def relaxed(self) -> NDArray[np.float64]:
        """Values of an optimum of the linear program, integrality left out; it has to have one."""
        solver = _Highs()
        solver.setOptionValue("output_flag", False)
        model = self._model()
        model.integrality_ = []
        if solver.passModel(model) == highspy.HighsStatus.kError:
            raise ValueError("the linear program was not accepted by HiGHS: a coefficient is not finite")
        solver.run()
        if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            raise ArithmeticError(f"HiGHS left a linear program without an optimum: {solver.getModelStatus()}")
        return np.array(solver.getSolution().col_value)

    def _model(self) -> highspy.HighsLp:
        model = highspy.HighsLp()
        model.num_col_ = len(self._cost)
        model.num_row_ = len(self._row_low)
        model.col_cost_ = np.array(self._cost, dtype=float)
        model.col_lower_ = np.array(self._low, dtype=float)
        model.col_upper_ = np.array(self._high, dtype=float)
        model.row_lower_ = np.array(self._row_low, dtype=float)
        model.row_upper_ = np.array(self._row_high, dtype=float)
        model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        model.a_matrix_.start_ = np.array(self._start, dtype=np.int32)
        model.a_matrix_.index_ = np.array(self._index, dtype=np.int32)
        model.a_matrix_.value_ = np.array(self._value, dtype=float)
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        model.integrality_ = [kinds[integer] for integer in self._integer]
        return model

    def _answer(self, solver: _Highs) -> Answer:
        status = solver.getModelStatus()
        info = solver.getInfo()
        if status in (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible):
            return Answer(infeasible=True, bound=INFINITY)
        optimal = status == highspy.HighsModelStatus.kOptimal
        bound = max(0.0, info.mip_dual_bound) if np.isfinite(info.mip_dual_bound) else 0.0
        if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
            return Answer(infeasible=False, bound=bound)
        values = tuple(solver.getSolution().col_value)
        return Answer(False, bound, info.objective_function_value, self._rounded(values), optimal)

    def _rounded(self, values: tuple[float, ...]) -> tuple[float, ...] | None:
        """Integers as integers; None if HiGHS' values are not integral after all."""
        result = []
        for value, integer in zip(values, self._integer, strict=True):
            whole = float(np.rint(value))
            if integer and abs(value - whole) > _INTEGRALITY_TOLERANCE:
                return None
            result.append(whole if integer else value)
        return tuple(result)
