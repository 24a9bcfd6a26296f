"""Elastic partitioning and guided self-tuning: the figures of the papers' notes, and what holds for every plan."""

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.baselines.elastic import elastic
from benchmarks.baselines.gpulets import Fleet, Rules, efficient_size, estimate, sufficient_size
from benchmarks.baselines.rates import peak, poisson_quantile
from benchmarks.baselines.self_tuning import self_tuned
from benchmarks.baselines.surface import MPS, Service, residue, saturated, service
from tests.benchmarks.gpus import LARGE, MIDDLE, MODELS, SMALL

STRICT = Rules(slack_per_s=0)


def flat(name: str, objective_ms: float, ms: float) -> Service:
    """The same latency for every batch on every share: batches are then set by the cycle alone."""
    return service(name, objective_ms, {p: {1: ms, 32: ms} for p in MPS.sizes})


@pytest.mark.parametrize(("batch", "duty_ms"), [(31, 69.196434), (29, 64.732147), (18, 40.178574)])
def test_the_cycles_of_the_recorded_plan(batch: int, duty_ms: float) -> None:
    """Plan 1 of the authors' scheduler: 400 requests per second planned as 448, cycle = batch / rate."""
    model = flat("m", objective_ms=duty_ms + 20, ms=20)
    turn = residue(model, 40, 448)
    assert turn is not None
    assert turn.batch == batch
    assert turn.duty_ms == pytest.approx(duty_ms, abs=1e-4)


@pytest.mark.parametrize(("rate", "planned"), [(400, 447), (100, 124)])
def test_rates_are_planned_as_their_poisson_quantile(rate: int, planned: int) -> None:
    assert poisson_quantile(rate) == planned


def test_the_efficient_share_is_at_the_knee_and_never_the_whole() -> None:
    assert [efficient_size(m, MPS, 1.05) for m in (SMALL, MIDDLE)] == [40, 60]
    assert efficient_size(LARGE, MPS, 1.05) != 100


def test_a_rest_needs_no_more_than_the_smallest_sufficient_share() -> None:
    turn = residue(MIDDLE, 60, 40)
    assert turn is not None
    size = sufficient_size(MIDDLE, MPS, turn, 60)
    assert size == 20
    assert MIDDLE.latency_ms(size, turn.batch) + turn.duty_ms <= MIDDLE.objective_ms


def test_a_rate_becomes_saturated_shares_and_a_rest() -> None:
    full = saturated(SMALL, 40)
    assert full is not None
    needs = estimate(SMALL, 2.5 * full.per_s, MPS, STRICT)
    assert needs is not None
    assert [n.size for n in needs[:2]] == [40, 40]
    assert len(needs) == 3


def test_a_gpu_is_cut_for_two_models() -> None:
    plan = elastic([(SMALL, 100), (MIDDLE, 150)], 1, MPS, STRICT)
    assert plan is not None
    assert sum(share.size for share in plan[0]) == 100
    assert {t.model.name for share in plan[0] for t in share.turns} == {"small", "middle"}


def test_a_third_model_takes_turns_where_two_parts_are_taken() -> None:
    plan = elastic([(SMALL, 50), (MIDDLE, 50), (LARGE, 50)], 1, MPS, STRICT)
    assert plan is not None
    assert max(len(share.turns) for share in plan[0]) == 2


def test_a_model_of_low_rate_is_placed() -> None:
    plan = elastic([(SMALL, 1)], 1, MPS)
    assert plan is not None
    assert any(share.turns for share in plan[0])


def test_interference_costs_rate_and_is_planned_for() -> None:
    def slow(*_: object) -> float:
        return 1.3

    demands = [(SMALL, 100.0), (LARGE, 100.0)]
    without, beside = (
        peak(lambda f, r=rules: elastic([(m, f * r_) for m, r_ in demands], 1, MPS, r) is not None, most=20)
        for rules in (STRICT, Rules(slack_per_s=0, slowdown=slow))
    )
    assert 0 < beside < without
    plan = elastic([(m, beside * r) for m, r in demands], 1, MPS, Rules(slack_per_s=0, slowdown=slow))
    assert plan is not None
    assert _valid(plan, slower=1.3)


def test_self_tuning_takes_the_smallest_share_that_is_enough() -> None:
    full = saturated(MIDDLE, 40)
    assert full is not None
    plan = self_tuned([(MIDDLE, 0.95 * full.per_s)], 1, MPS)
    assert plan is not None
    assert [share.size for share in plan[0] if share.turns] == [40]


def test_self_tuning_knows_no_time_sharing() -> None:
    assert self_tuned([(m, 1) for m in MODELS], 1, MPS) is None
    assert elastic([(m, 1) for m in MODELS], 1, MPS, STRICT) is not None


def test_a_peak_is_found_above_a_hole() -> None:
    """Sharing time greedily is not monotone in the rate: a search has to scan."""
    served = [(1.0, 2.0), (5.0, 6.0)]
    found = peak(lambda f: any(low <= f <= high for low, high in served), most=10)
    assert found == pytest.approx(6, rel=0.01)
    assert peak(lambda f: False, most=10) == 0


def _valid(plan: Fleet, *, slower: float = 1.0) -> bool:
    for gpu in plan:
        if len(gpu) > 2 or sum(share.size for share in gpu) > 100:
            return False
        for share in gpu:
            factor = slower if sum(bool(s.turns) for s in gpu) == 2 else 1.0
            late = any(
                share.duty_ms + factor * t.model.latency_ms(share.size, t.batch) > t.model.objective_ms + 1e-6
                for t in share.turns
            )
            short = any(t.batch < t.rate_per_s * t.duty_ms / 1000 - 2e-3 for t in share.turns)
            if share.turns and (late or short or share.busy(factor) > 1 + 1e-6):
                return False
    return True


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(MODELS), st.floats(1, 2500)), min_size=1, unique_by=lambda d: d[0].name),
    st.integers(1, 4),
    st.booleans(),
)
def test_every_plan_holds_and_carries_every_rate(
    demands: list[tuple[Service, float]], gpus: int, whole_first: bool
) -> None:
    rules = Rules(slack_per_s=0, whole_first=whole_first)
    for plan in (elastic(demands, gpus, MPS, rules), self_tuned(demands, gpus, MPS)):
        if plan is None:
            continue
        assert _valid(plan)
        served: dict[str, float] = defaultdict(float)
        for gpu in plan:
            for share in gpu:
                for turn in share.turns:
                    served[turn.model.name] += turn.rate_per_s
        assert all(served[model.name] >= rate - 1e-3 for model, rate in demands)
