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
from tests.planner.worlds import demand, faults, gpu, node, point

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


def crowd(number: int, memory_mib: int, namespaces: int) -> Problem:
    """Models on shares of whole GPUs, each with a curve of its own."""
    wishes = []
    for i in range(number):
        base, power = 40 + 31 * (i % 11), 0.55 + 0.05 * (i % 8)
        points = [point(p, ms=1000 / (base * (p / 20) ** power), memory_mib=memory_mib) for p in (10, 20, 40, 60, 100)]
        rate = base * (0.1 + ((5 * i) % 17) / 10)
        wishes.append(demand(f"m{i:04d}", *points, rate=rate, ms=300.0, namespace=f"ns{i % namespaces:02d}"))
    host = node(cpu=10**9, memory_mib=10**9, free_pods=10**6)
    return Problem(tuple(gpu(i) for i in range(number)), (host,), tuple(wishes))


@pytest.mark.parametrize("split", ["even", "weighted"])
def test_where_memory_binds_it_has_a_price(split: str) -> None:
    """Two replicas of 30 GB fit a GPU: at least 60 GPUs, and few large replicas instead of many small ones."""
    problem = crowd(120, 30_000, 1)
    problem = replace(problem, policy=replace(problem.policy, split=split))
    found = plan(problem)
    assert faults(problem, found) == []
    assert len(found.slots) <= 1.1 * 120
    assert 60 <= found.gpus <= 1.1 * 60
    assert found.lower_bound > plan(replace(crowd(120, 100, 1), policy=problem.policy)).lower_bound


def test_the_bound_counts_whole_gpus_per_namespace() -> None:
    """Namespaces share no GPU: what each lacks to a whole one is part of the bound."""
    problem = crowd(120, 1000, 12)
    found = plan(problem)
    assert faults(problem, found) == []
    assert found.gpus <= found.lower_bound + 2
