"""The ideal against a search by hand, and against every other planner."""

from itertools import combinations_with_replacement, product

import pytest

from benchmarks.baselines.elastic import elastic
from benchmarks.baselines.gpulets import Rules
from benchmarks.baselines.ideal import CLOSE, GAP, highest_factor, uses
from benchmarks.baselines.nexus import squishy
from benchmarks.baselines.rates import peak
from benchmarks.baselines.self_tuning import self_tuned
from benchmarks.baselines.surface import MIG, MPS, Service, saturated
from tests.benchmarks.gpus import LARGE, MIDDLE, MODELS, SMALL

TABLE = {size: uses(MODELS, size) for size in MPS.sizes}


def by_hand(demands: list[tuple[Service, float]], gpus: int) -> float:
    """Every set of cuts and every model in every part; no time sharing."""
    best = 0.0
    for cuts in combinations_with_replacement(MPS.cuts(), gpus):
        parts = [size for cut in cuts for size in cut]
        for choice in product(range(len(demands)), repeat=len(parts)):
            per_s = [0.0] * len(demands)
            for size, i in zip(parts, choice, strict=True):
                full = saturated(demands[i][0], size)
                per_s[i] += full.per_s if full else 0.0
            best = max(best, min(s / r for s, (_, r) in zip(per_s, demands, strict=True)))
    return best


@pytest.mark.parametrize("gpus", [1, 2])
@pytest.mark.parametrize("rates", [(100, 100), (300, 50), (20, 400)])
def test_without_time_sharing_it_is_the_best_of_all_assignments(rates: tuple[int, int], gpus: int) -> None:
    demands = [(SMALL, float(rates[0])), (LARGE, float(rates[1]))]
    dedicated = {size: uses(MODELS, size, together=1) for size in MPS.sizes}
    found = highest_factor(demands, gpus, MPS, dedicated, gap=0.0)
    best = by_hand(demands, gpus)
    assert found.reached == pytest.approx(best, rel=1e-6)
    assert found.bound >= best * (1 - 1e-6)


@pytest.mark.parametrize("rates", [(100, 100, 100), (400, 0, 50), (20, 300, 150)])
def test_no_other_planner_is_above_its_bound_or_much_above_what_it_reaches(rates: tuple[int, ...]) -> None:
    demands = [(m, float(r)) for m, r in zip(MODELS, rates, strict=True) if r]
    found = highest_factor(demands, 2, MPS, TABLE, exact=False)
    others = [
        lambda f: elastic([(m, f * r) for m, r in demands], 2, MPS, Rules(slack_per_s=0)) is not None,
        lambda f: self_tuned([(m, f * r) for m, r in demands], 2, MPS) is not None,
        lambda f: len(squishy(100, [(m, f * r) for m, r in demands]) or [0] * 9) <= 2,
    ]
    assert 0 < found.reached <= found.bound
    for serves in others:
        reached = peak(serves, most=1.2 * found.bound)
        assert reached <= found.bound * (1 + 1e-6)
        assert reached <= found.reached * (1 + GAP + 2 * CLOSE)


def test_models_that_take_turns_can_do_what_parts_alone_cannot() -> None:
    demands = [(SMALL, 10.0), (MIDDLE, 10.0), (LARGE, 10.0)]
    alone = {size: uses(MODELS, size, together=1) for size in MPS.sizes}
    assert highest_factor(demands, 1, MPS, alone, exact=False).reached == 0
    assert highest_factor(demands, 1, MPS, TABLE, exact=False).reached > 1


def test_cuts_that_another_beats_are_left_out() -> None:
    assert MPS.cuts() == ((100,), (20, 80), (40, 60), (50, 50))
    assert MIG.cuts() == ((7,), (3, 4))
