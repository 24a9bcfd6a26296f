"""Policies beyond the number of GPUs: fault domains, empty nodes, room for the failure of a node."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpulet.model.plan import Plan, PlannerPolicy, Problem, Slot
from gpulet.planner import plan
from tests.planner.test_properties import problems
from tests.planner.worlds import CUT, demand, device, faults, gpu, node, point

SLOW = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
SPLITS = ("even", "weighted")
TWO_NODES = (node("gpu-1"), node("gpu-10"))


def policy(split: str, **changes: object) -> PlannerPolicy:
    return PlannerPolicy(split=split, latency_rule="half", interference_margin=0.0, **changes)  # type: ignore[arg-type]


def devices(found: Plan, name: str) -> set[object]:
    return {s.device for p in found.placed if p.model.name == name for s in p.slots}


@pytest.mark.parametrize("split", SPLITS)
def test_two_replicas_change_places_with_another_models_to_be_on_two_gpus(split: str) -> None:
    """Two models of two halves: without the policy one GPU each may be as good, with it both have two fault domains."""
    wishes = tuple(demand(n, point(50, ms=10), rate=190, ms=100) for n in "ab")
    problem = Problem((gpu(0), gpu(1)), (node(),), wishes, policy=policy(split, fault_domains=True))
    found = plan(problem)
    assert faults(problem, found) == []
    assert found.gpus == 2
    assert all(len(devices(found, n)) == 2 for n in "ab")
    again = plan(replace(problem, current=found.slots))
    assert set(again.slots) == set(found.slots)


@pytest.mark.parametrize("split", SPLITS)
def test_another_gpu_is_opened_for_a_second_fault_domain(split: str) -> None:
    wish = demand("m", point(50, ms=10), rate=190, ms=100)
    problem = Problem((gpu(0), gpu(1)), (node(),), (wish,), policy=policy(split))
    assert plan(problem).gpus == 1
    spread = replace(problem, policy=policy(split, fault_domains=True))
    found = plan(spread)
    assert found.gpus == 2
    assert found.lower_bound <= 2
    assert set(plan(replace(spread, current=found.slots)).slots) == set(found.slots)


@pytest.mark.parametrize("split", SPLITS)
def test_one_fault_domain_is_said_where_there_is_no_other(split: str) -> None:
    wish = demand("m", point(50, ms=10), rate=190, ms=100)
    found = plan(Problem((gpu(0),), (node(),), (wish,), policy=policy(split, fault_domains=True)))
    assert len(found.slots) == 2
    assert any("vision/m has all replicas in one fault domain" in note for note in found.notes)


@pytest.mark.parametrize("split", SPLITS)
def test_two_nodes_where_that_costs_no_gpu(split: str) -> None:
    """MIG placements are fault domains of their own; the replicas also change nodes with those of the other model."""
    wishes = tuple(demand(n, point(100, mig="3g.40gb", ms=10), rate=190, ms=100) for n in "ab")
    cards = (gpu(0, "gpu-1", placements=CUT), gpu(1, "gpu-10", placements=CUT))
    found = plan(Problem(cards, TWO_NODES, wishes, policy=policy(split, fault_domains=True)))
    assert found.gpus == 2
    assert all({s.device.node for s in p.slots} == {"gpu-1", "gpu-10"} for p in found.placed)


@pytest.mark.parametrize("split", SPLITS)
def test_a_node_is_emptied_for_the_autoscaler(split: str) -> None:
    """Two GPUs in use on two nodes; one node has room for both."""
    wishes = tuple(demand(n, point(100), rate=50, ms=100) for n in "ab")
    there = tuple(
        Slot(w.model, device(i, node=n), 100, 1000, 1, 1, 1)
        for i, (w, n) in enumerate(zip(wishes, ("gpu-1", "gpu-10"), strict=True))
    )
    cards = (gpu(0, "gpu-1"), gpu(1, "gpu-10"), gpu(2, "gpu-10"))
    problem = Problem(cards, TWO_NODES, wishes, current=there, policy=policy(split))
    assert {s.device.node for s in plan(problem).slots} == {"gpu-1", "gpu-10"}
    emptied = replace(problem, policy=policy(split, empty_nodes=True))
    found = plan(emptied)
    assert faults(emptied, found) == []
    assert {s.device.node for s in found.slots} == {"gpu-10"}
    assert set(plan(replace(emptied, current=found.slots)).slots) == set(found.slots)


@pytest.mark.parametrize("split", SPLITS)
def test_room_is_kept_for_the_failure_of_the_largest_node(split: str) -> None:
    """Three GPUs on two nodes: when the node with two fails, one is left; the lower priority is not placed."""
    wishes = tuple(demand(f"m{i}", point(100), rate=50, ms=100, priority=i) for i in range(3))
    cards = (gpu(0, "gpu-1"), gpu(1, "gpu-1"), gpu(2, "gpu-10"))
    problem = Problem(cards, TWO_NODES, wishes, policy=policy(split, node_failure_headroom=True))
    found = plan(problem)
    assert [p.model.name for p in found.placed] == ["m2"]
    assert {u.reason for u in found.unplaced} == {"NodeFailureHeadroom"}
    assert all("when node gpu-1 fails" in u.message for u in found.unplaced)
    survivors = replace(problem, gpus=cards[2:], policy=policy(split), demands=(wishes[2],))
    assert not plan(survivors).unplaced


def test_a_single_node_cannot_keep_room_and_says_so() -> None:
    wish = demand("m", point(100), rate=50, ms=100)
    found = plan(Problem((gpu(0),), (node(),), (wish,), policy=policy("even", node_failure_headroom=True)))
    assert not found.unplaced
    assert any("one node" in note for note in found.notes)


@SLOW
@given(problems(), st.sampled_from(SPLITS), st.booleans(), st.booleans(), st.booleans())
def test_all_features_on_break_no_limit_and_no_bound(
    problem: Problem, split: str, turns: bool, spread: bool, headroom: bool
) -> None:
    """Everything on at once: limits, bound, and the plan of the planned world is itself."""
    rules = PlannerPolicy(
        split=split,  # type: ignore[arg-type]  # one of two literals
        time_sharing=turns,
        fault_domains=spread,
        empty_nodes=True,
        node_failure_headroom=headroom,
    )
    asked = replace(problem, policy=rules)
    found = plan(asked)
    assert faults(asked, found) == []
    second = plan(replace(asked, current=found.slots))
    assert set(second.slots) == set(found.slots)
