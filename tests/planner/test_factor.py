"""Objective ``rate``: the highest common factor of all rates on the GPUs there are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpulet.model.plan import PlannerPolicy, Problem
from gpulet.planner import plan
from tests.planner.test_weighted import oracle
from tests.planner.worlds import CUT, demand, gpu, node, point

RATE = PlannerPolicy(objective="rate", latency_rule="half", interference_margin=0.0, transition_reserve=0)


@pytest.mark.parametrize("split", ["even", "weighted"])
def test_one_model_on_two_gpus(split: str) -> None:
    """A whole GPU carries 100 requests/s; two carry 8 times a rate of 25."""
    problem = Problem(
        (gpu(0), gpu(1)), (node(),), (demand("m", point(100), rate=25),), policy=replace(RATE, split=split)
    )
    found = plan(problem)
    assert found.rate_factor == pytest.approx(8, rel=1e-3)
    assert found.rate_factor_bound is not None
    assert 8 <= found.rate_factor_bound <= 8.1
    assert found.gpus == 2
    assert not found.unplaced


def test_rates_that_do_not_fit_have_a_factor_below_one() -> None:
    problem = Problem((gpu(0),), (node(),), tuple(demand(n, point(50), rate=400) for n in "ab"), policy=RATE)
    found = plan(problem)
    assert found.rate_factor == pytest.approx(0.25, rel=1e-3)
    assert len(found.placed) == 2


def test_who_fits_at_no_rate_does_not_hold_the_others_back() -> None:
    """A model whose objective no share meets is left out, and said; the factor is that of the others."""
    wishes = (demand("good", point(100), rate=50), demand("late", point(100, ms=80), rate=1, ms=100))
    found = plan(Problem((gpu(0), gpu(1)), (node(),), wishes, policy=RATE))
    assert [u.reason for u in found.unplaced] == ["ObjectiveInfeasible"]
    assert found.rate_factor == pytest.approx(4, rel=1e-3)


def test_the_factor_leaves_room_for_the_failure_of_a_node() -> None:
    """Two nodes of one GPU each: what both carry has to fit one."""
    cards, wish = (gpu(0, "gpu-1"), gpu(1, "gpu-10")), demand("m", point(100), rate=50)
    kept = replace(RATE, node_failure_headroom=True)
    found = plan(Problem(cards, (node("gpu-1"), node("gpu-10")), (wish,), policy=kept))
    assert found.rate_factor == pytest.approx(2, rel=1e-3)
    assert not found.unplaced


def test_nobody_fits() -> None:
    found = plan(Problem((gpu(0),), (node(),), (demand("late", point(100, ms=80), ms=100),), policy=RATE))
    assert found.rate_factor == found.rate_factor_bound == 0


def test_more_gpus_carry_more() -> None:
    """On as many GPUs as are needed the factor is at least 1; half as many again carry nearly half as much more."""
    base = oracle(20, "mig")
    needed = plan(base).gpus
    factors = []
    for number in (needed, needed + needed // 2):
        cards = tuple(gpu(i, whole=False, placements=CUT) for i in range(number))
        asked = replace(base, gpus=cards, policy=replace(base.policy, objective="rate"))
        found = plan(asked)
        assert found.rate_factor is not None
        assert found.rate_factor_bound is not None
        assert found.rate_factor <= found.rate_factor_bound
        assert found.gpus <= number
        for placed in found.placed:
            rate = next(d.requests_per_s for d in asked.demands if d.model == placed.model)
            assert placed.sustainable_per_s >= rate * found.rate_factor * (1 - 1e-6)
        factors.append(found.rate_factor)
    assert factors[0] >= 1
    assert factors[1] > factors[0] * 1.2
