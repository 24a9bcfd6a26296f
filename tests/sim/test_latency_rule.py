"""The rule by which shares are sized keeps its promise, and is worth it: a small run of ``benchmarks/latency_rule.py``.

Seeds are fixed; 14 plans with 75 models, 20,000 requests a model. The whole benchmark: 1,000 plans.
"""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.latency_rule import ALLOWED_MISSES, outcome, random_problem
from gpulet.planner import plan
from gpulet.sim.arrivals import bursty
from gpulet.sim.judge import judged

SEED, PLANS = 2, 14


@pytest.mark.timeout(300)
def test_models_keep_their_objective_at_the_declared_rate_and_cost_little_more_than_a_rule_that_breaks_it() -> None:
    ours = outcome(SEED, PLANS, rule="backlog")
    naive = outcome(SEED, PLANS, rule="half")
    assert ours.unplaced == naive.unplaced == 0
    assert ours.models > 60
    assert ours.miss_rate < ALLOWED_MISSES
    assert naive.miss_rate > 0.3
    assert ours.gpus <= 1.25 * naive.gpus


@pytest.mark.timeout(300)
def test_the_naive_rule_needs_far_more_than_a_tenth_more_gpus_to_be_as_safe() -> None:
    """2 L <= objective with all rates doubled still misses too often, and costs more than ours."""
    inflated = outcome(SEED, PLANS // 2, rule="half", inflation=2.0)
    ours = outcome(SEED, PLANS // 2, rule="backlog")
    assert inflated.miss_rate > ALLOWED_MISSES
    assert ours.gpus < inflated.gpus / 1.1


def test_a_verdict_is_of_the_model_alone() -> None:
    problem = random_problem(SEED, 0)
    found = plan(problem)
    together = judged(problem, found, seed=5, requests=2000)
    fewer = replace(found, placed=found.placed[1:])
    assert judged(problem, fewer, seed=5, requests=2000) == together[1:]


def test_bursts_at_twice_the_declared_rate_are_seen() -> None:
    problem = random_problem(SEED, 1)
    found = plan(problem)

    def bursts(chance: np.random.Generator, per_s: float, requests: int) -> np.ndarray:
        return bursty(chance, per_s, requests, peak=2.5, peak_part=0.3, peak_ms=5000)

    calm = judged(problem, found, seed=5)
    rough = judged(problem, found, seed=5, arrivals=bursts)
    assert sum(v.late for v in rough) > 2 * sum(v.late for v in calm)


def test_interference_that_was_not_planned_for_makes_models_late() -> None:
    problem = random_problem(SEED, 2)
    found = plan(problem)
    slower = judged(problem, found, seed=5, slowdown=lambda slot: 1.5)
    assert sum(v.late for v in slower) > sum(v.late for v in judged(problem, found, seed=5))
