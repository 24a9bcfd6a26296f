"""Profiles with noise, gaps and wrong units give a clear finding, not nonsense."""

from __future__ import annotations

from dataclasses import replace

import pytest

import gpulet.planner.solver as solver
from gpulet.model.plan import Plan, PlannerPolicy, Problem
from gpulet.model.profile import ProfilePoint
from gpulet.planner import plan
from tests.planner.worlds import demand, faults, gpu, node, point


def planned(*points: ProfilePoint, split: str = "even", rate: float = 20.0) -> Plan:
    policy = PlannerPolicy(split=split)  # type: ignore[arg-type]  # one of two literals
    return plan(Problem((gpu(0), gpu(1)), (node(),), (demand("m", *points, rate=rate),), policy=policy))


def thousandfold(one: ProfilePoint, factor: float) -> ProfilePoint:
    return replace(one, mean_us=one.mean_us * factor, p50_us=one.p50_us * factor, p99_us=one.p99_us * factor)


@pytest.mark.parametrize("split", ["even", "weighted"])
@pytest.mark.parametrize(("factor", "word"), [(1e-3, "milliseconds instead of microseconds"), (1e3, "nanoseconds")])
def test_a_unit_wrong_by_a_thousand_is_named(split: str, factor: float, word: str) -> None:
    (left,) = planned(*(thousandfold(point(p), factor) for p in (20, 50, 100)), split=split).unplaced
    assert left.reason == "NoProfile"
    assert word in left.message
    assert "measure it anew" in left.message


@pytest.mark.parametrize("split", ["even", "weighted"])
def test_single_points_that_cannot_be_true_are_left_out(split: str) -> None:
    """An absurdly fast point does not win: the share is that of the true ones."""
    found = planned(thousandfold(point(10), 1e-3), point(50), point(100, ms=6), split=split)
    assert {s.compute_percent for s in found.slots} == {50}
    assert any("1 of 3 points are left out" in note and "vision/m" in note for note in found.notes)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_values_that_are_no_measurement(value: float) -> None:
    found = planned(replace(point(10), throughput_per_s=value), replace(point(20), mean_us=value), point(50))
    assert {s.compute_percent for s in found.slots} == {50}
    assert any("2 of 3 points are left out" in note for note in found.notes)


def test_noise_is_said_when_it_is_much() -> None:
    shares = {10: 30.0, 20: 40.0, 30: 20.0, 40: 31.0, 50: 12.0, 60: 19.0}
    found = planned(*(point(p, ms=ms) for p, ms in shares.items()))
    assert not found.unplaced
    assert any("3 of 5 neighbouring shares" in note for note in found.notes)
    calm = planned(*(point(p, ms=100 / p) for p in shares))
    assert calm.notes == ()


def test_gaps_are_no_shares() -> None:
    """Only what was measured is planned: batch 8 at 20 % has no point, and is not made up."""
    found = planned(point(20), point(50, batch=8, ms=20), rate=60)
    assert {(s.compute_percent, s.batch) for s in found.slots} <= {(20, 1), (50, 8)}


class Broken:
    """HiGHS in the state in which it answers nothing, as it does after its thread option was changed."""

    def __init__(self) -> None:
        self.inner = solver.highspy._core._Highs()

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def run(self) -> None:
        return None


@pytest.mark.parametrize("split", ["even", "weighted"])
def test_a_failing_solver_still_leaves_a_valid_plan_that_says_so(split: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wishes = tuple(demand(f"m{i}", point(40), point(100, ms=6), rate=20) for i in range(5))
    policy = PlannerPolicy(split=split)  # type: ignore[arg-type]  # one of two literals
    problem = Problem(tuple(gpu(i) for i in range(4)), (node(),), wishes, policy=policy)
    monkeypatch.setattr(solver, "_Highs", Broken)
    found = plan(problem)
    assert faults(problem, found) == []
    assert not found.unplaced
    assert any("solver" in note for note in found.notes)
