"""An even split of many models is planned by slot prices: all replicas of a model alike, near the bound, in seconds."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import pytest
from hypothesis import HealthCheck, given, settings

from gpulet.model.plan import Problem
from gpulet.planner import plan
from tests.planner.test_properties import problems
from tests.planner.test_weighted import oracle
from tests.planner.worlds import faults

SLOW = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


@pytest.fixture
def all_by_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small worlds are planned like large ones."""
    monkeypatch.setattr(import_module("gpulet.planner.plan"), "MOST_SINGLY", 0)


@pytest.mark.usefixtures("all_by_prices")
@SLOW
@given(problems())
def test_small_worlds_planned_like_large_ones_break_no_limit(problem: Problem) -> None:
    """Limits, equal replicas, the bound, and the plan of the planned world is itself."""
    found = plan(problem)
    assert faults(problem, found) == []
    second = plan(replace(problem, current=found.slots))
    assert set(second.slots) == set(found.slots)


@pytest.mark.parametrize(("family", "number"), [("mig", 150), ("mps", 150)])
def test_many_models_are_near_their_bound(family: str, number: int) -> None:
    problem = replace(oracle(number, family), policy=replace(oracle(1, family).policy, split="even"))
    found = plan(problem)
    assert faults(problem, found) == []
    assert not found.unplaced
    assert found.bound_kind == "proven"
    assert found.gpus <= found.lower_bound + 1
