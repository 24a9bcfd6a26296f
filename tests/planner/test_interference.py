"""What neighbours cost: the two models, their fit, and what the planner makes of it. Truths are synthetic, seeded."""

from dataclasses import replace

import numpy as np
import pytest

from gpulet.model.plan import PlannerPolicy, Problem, Usage
from gpulet.model.profile import CoRun, Profile, Resident
from gpulet.planner import plan
from gpulet.planner.interference import LEAST_POINTS, Analytic, Linear, Margin, fitted
from gpulet.planner.neighbours import with_slowdowns
from tests.planner.worlds import P, demand, device, faults, gpu, node, point

QUIET, GREEDY = Resident(P, 50, 0.05, 0.05), Resident(P, 50, 0.9, 0.8)


def residents(chance: np.random.Generator, number: int) -> list[Resident]:
    return [
        Resident(P, int(chance.choice([20, 40, 50, 60])), *chance.uniform(0, 1, 2).tolist(), chance.uniform(0.5, 1))
        for _ in range(number)
    ]


def co_runs(truth: object, number: int, *, noise: float = 0.0, others: int = 1, seed: int = 1) -> list[CoRun]:
    chance = np.random.default_rng(seed)
    found = []
    for _ in range(number):
        victim, *beside = residents(chance, 1 + others)
        slowdown = truth.slowdown(victim, beside) * float(chance.normal(1, noise))  # type: ignore[attr-defined]
        found.append(CoRun(victim, tuple(beside), slowdown))
    return found


def test_nobody_beside_nothing_lost() -> None:
    for model in (Margin(0.1), Linear((0.1, 0.5, 0.1, 0.1, 1.0)), Analytic(0.4, 0.1)):
        assert model.slowdown(GREEDY, []) == 1.0


def test_the_linear_model_is_that_of_gpu_lets() -> None:
    """papers.md 2.7: c1 l2_me + c2 l2_you + c3 dram_me + c4 dram_you + c5, each use scaled by its share, floor 1."""
    model = Linear((0.1, 0.7, 0.3, 0.1, 0.9))
    expected = 0.1 * 0.9 * 0.5 + 0.7 * 0.05 * 0.5 + 0.3 * 0.8 * 0.5 + 0.1 * 0.05 * 0.5 + 0.9
    assert model.slowdown(GREEDY, [QUIET]) == pytest.approx(expected)
    assert model.slowdown(QUIET, [QUIET]) == 1.0
    assert model.slowdown(QUIET, [QUIET, GREEDY]) == model.slowdown(QUIET, [GREEDY])


def test_the_analytical_model_is_that_of_igniter() -> None:
    """papers.md 6: t_act (1 + alpha sum of c) + t_sch that grows with every neighbour, relative to a solo run."""
    victim = Resident(P, 40, 0.5, 0.5, active=0.75)
    both = [Resident(P, 20, 0.5, 0.1), Resident(P, 40, 0.5, 0.1)]
    assert Analytic(0.4, 0.1).slowdown(victim, both) == pytest.approx(0.75 * (1 + 0.4 * 0.3) + 0.25 * (1 + 2 * 0.1))


@pytest.mark.parametrize("truth", [Linear((0.1, 0.7, 0.35, 0.09, 1.0)), Analytic(0.5, 0.2)])
def test_a_fit_finds_the_truth_that_made_the_points(truth: object) -> None:
    others = 1 if isinstance(truth, Linear) else 2
    found = fitted(co_runs(truth, 60, noise=0.01, others=others), margin=0.1)
    assert type(found.fits[P].model) is type(truth)
    assert found.fits[P].error_p90 < 0.03
    fresh = co_runs(truth, 200, others=others, seed=9)
    wrong = [found.slowdown(c.victim, c.others) - c.slowdown for c in fresh]
    assert np.abs(wrong).max() < 0.06
    assert np.mean(np.array(wrong) >= -0.005) > 0.95, "to the safe side"


def test_points_in_any_order_and_twice_give_the_same_fit() -> None:
    points = co_runs(Analytic(0.5, 0.2), 30, noise=0.02)
    assert fitted(points, 0.1) == fitted([*reversed(points), *points], 0.1)


def test_too_few_points_or_unknown_neighbours_leave_the_margin_of_policy() -> None:
    few = fitted(co_runs(Analytic(0.5, 0.2), LEAST_POINTS - 1), margin=0.1)
    assert few.slowdown(GREEDY, [GREEDY]) == pytest.approx(1.1)
    enough = fitted(co_runs(Analytic(0.5, 0.2), 30), margin=0.1)
    assert enough.slowdown(QUIET, [Resident(P, 50)]) == pytest.approx(1.1)
    assert enough.slowdown(replace(QUIET, product="OTHER"), [GREEDY]) == pytest.approx(1.1)


def world(*, strangers: bool = False, **changes: object) -> Problem:
    """Two quiet models and a greedy one, measured beside each other."""
    truth = Linear((0.0, 0.4, 0.0, 0.2, 1.0))
    wishes = []
    for name, l2, dram, seed in (("quiet", 0.05, 0.05, 1), ("calm", 0.1, 0.1, 2), ("greedy", 0.9, 0.9, 3)):
        chance = np.random.default_rng(seed)
        points = []
        for other in residents(chance, 12):
            victim = Resident(P, 50, l2, dram)
            points.append(CoRun(victim, (other,), truth.slowdown(victim, [other])))
        one = demand(name, *(point(p, ms=400 / p) for p in (20, 40, 60)), rate=45, ms=90, **changes)
        wishes.append(replace(one, profile=Profile(one.profile.points, name, tuple(points))))
    usages = (Usage(device(0), 10, 1000, 1, "vision", "Any"),) if strangers else ()
    return Problem(
        (gpu(0), gpu(1), gpu(2)), (node(),), tuple(wishes), usages, policy=PlannerPolicy(interference_margin=0.6)
    )


def factors(problem: Problem) -> dict[str, dict[int, float]]:
    return {
        d.model.name: {percent: factor for _, percent, factor in d.slowdowns} for d in with_slowdowns(problem).demands
    }


def test_a_model_pays_for_the_worst_that_may_sit_beside_it() -> None:
    found = factors(world())
    assert found["quiet"][20] == pytest.approx(1 + 0.8 * 0.6 * 0.9, rel=0.01)
    assert found["quiet"][20] > found["quiet"][60] > 1, "less room, less of a neighbour"


def test_who_may_not_sit_beside_it_costs_nothing() -> None:
    """The greedy one in a namespace of its own, all by namespace: the quiet ones are nearly undisturbed."""
    problem = world()
    greedy = problem.demands[2]
    apart = replace(greedy, model=replace(greedy.model, namespace="apart"))
    found = factors(replace(problem, demands=(*problem.demands[:2], apart)))
    assert found["quiet"][20] < 1.06
    assert factors(world(isolation="None")) == {"quiet": {}, "calm": {}, "greedy": {}}


def test_beside_foreign_shares_it_is_at_least_the_margin() -> None:
    assert factors(world(strangers=True))["quiet"][60] == pytest.approx(1.6)


def test_plans_with_measured_interference_need_less_than_with_the_worst_margin() -> None:
    problem = world()
    measured, blind = plan(problem), plan(replace(problem, demands=tuple(_without(d) for d in problem.demands)))
    assert not measured.unplaced
    assert sum(s.compute_percent for s in measured.slots) < sum(s.compute_percent for s in blind.slots)
    assert faults(problem, measured) == []
    again = plan(replace(problem, current=measured.slots))
    assert again.slots == measured.slots


def _without(wish: object) -> object:
    return replace(wish, profile=replace(wish.profile, co_runs=()))  # type: ignore[type-var, attr-defined]
