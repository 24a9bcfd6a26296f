"""Squishy bin packing: the worked example of Nexus section 4.1, and what holds for every plan."""

from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.baselines.nexus import Node, merge, squishy
from benchmarks.baselines.surface import Service, Turn, residue, saturated, service
from tests.benchmarks.gpus import LARGE, MIDDLE, MODELS, SMALL

# The paper's models on a whole GPU: 8 requests of A take 75 ms, 4 of B 50 ms, 4 of C 60 ms.
A = service("a", 200, {100: {1: 40, 8: 75, 16: 115}})
B = service("b", 250, {100: {1: 20, 4: 50, 8: 90}})
C = service("c", 250, {100: {1: 30, 4: 60, 8: 95}})


def test_the_residue_of_the_worked_example() -> None:
    turn = residue(A, 100, 64)
    assert turn is not None
    assert (turn.batch, turn.duty_ms) == (8, 125)
    assert turn.duty_ms + A.latency_ms(100, turn.batch) == 200  # its whole objective


def test_b_fits_beside_a_and_c_does_not() -> None:
    turn = residue(A, 100, 64)
    assert turn is not None
    with_b = merge(100, 125, (turn, Turn(B, 32, 4, 125)))
    assert with_b is not None
    assert with_b.busy_ms == 75 + 50
    assert merge(100, 125, (turn, Turn(C, 32, 4, 125))) is None  # 75 + 60 > 125


def test_the_plan_of_the_worked_example() -> None:
    plan = squishy(100, [(A, 64), (B, 32), (C, 32)])
    assert plan is not None
    assert sorted(sorted(t.model.name for t in node.turns) for node in plan) == [["a", "b"], ["c"]]


def test_what_saturates_a_gpu_gets_one_of_its_own() -> None:
    full = saturated(LARGE, 100)
    assert full is not None
    plan = squishy(100, [(LARGE, 2.25 * full.per_s)])
    assert plan is not None
    assert [round(node.occupancy, 6) for node in plan[:2]] == [1, 1]
    assert sum(t.rate_per_s for node in plan for t in node.turns) == 2.25 * full.per_s


def test_an_objective_that_no_batch_meets_has_no_plan() -> None:
    assert squishy(100, [(service("late", 10, {100: {1: 6.0}}), 1)]) is None


def test_the_lowest_rates_are_served_too() -> None:
    plan = squishy(100, [(model, 0.01) for model in MODELS])
    assert plan is not None
    assert len(plan) == 1


def _holds(node: Node) -> bool:
    latencies = [t.model.latency_ms(node.size, t.batch) for t in node.turns]
    return (
        sum(latencies) <= node.duty_ms + 1e-6
        and all(node.duty_ms + own <= t.model.objective_ms + 1e-6 for own, t in zip(latencies, node.turns, strict=True))
        and all(t.batch >= t.rate_per_s * node.duty_ms / 1000 - 2e-3 for t in node.turns)
    )


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from([SMALL, MIDDLE, LARGE, A, B, C]), st.floats(0.1, 3000)), max_size=6))
def test_every_cycle_holds_and_every_rate_is_served(demands: list[tuple[Service, float]]) -> None:
    plan = squishy(100, demands)
    assert plan is not None
    assert all(_holds(node) for node in plan)
    served = sum(t.rate_per_s for node in plan for t in node.turns)
    assert abs(served - sum(rate for _, rate in demands)) < 1e-3
