"""benchmarks/spatial.py as a user runs it, on few scenarios of a small fleet."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import synthetic
from benchmarks.spatial import RATES_PER_S, World, as_table, main, run, scenarios, synthetic_world

MODELS = synthetic.services()
ROUNDING = 1.001
"""The planner halves an interval, not for ever."""


def test_there_are_1023_mixes_and_each_is_there_once() -> None:
    mixes = [tuple((model.name, rate) for model, rate in mix) for _, mix in scenarios(MODELS, 5000)]
    assert len(mixes) == len(set(mixes)) == len(RATES_PER_S) ** len(MODELS) - 1 == 1023


def test_few_scenarios_are_spread_over_all() -> None:
    indices = [index for index, _ in scenarios(MODELS, 32)]
    assert max(indices) - min(indices) > 900


def test_the_synthetic_gpu_has_knees_and_neighbours_slow_down() -> None:
    shape = synthetic.MODELS["lenet"]
    assert shape.latency_ms(1, 0.2) == shape.latency_ms(1, 1.0)
    assert shape.latency_ms(32, 0.2) > shape.latency_ms(32, 0.4) == shape.latency_ms(32, 1.0)
    # Below the knee compute per request is the same for every batch, and the launch is shared.
    per_request = [shape.latency_ms(batch, 0.1) / batch for batch in (1, 8, 32)]
    assert per_request == sorted(per_request, reverse=True)
    small, large = MODELS[0], MODELS[-1]
    assert 1 < synthetic.slowdown(large, 1, 50, small, 1, 50) < synthetic.slowdown(large, 1, 50, large, 1, 50)
    assert synthetic.slowdown(large, 1, 50, large, 1, 50) <= synthetic.worst_slowdown()


def test_the_product_sees_the_same_latencies_as_the_baselines() -> None:
    world = synthetic_world()
    for model in world.models:
        for point in world.profiles[model.name].points:
            assert math.isclose(point.mean_us / 1000, model.latency_ms(point.compute_percent, point.batch))


@pytest.fixture(scope="module")
def small() -> World:
    """Two of the models: the ways to take turns are few."""
    world = synthetic_world()
    return replace(world, models=world.models[2:4])


@pytest.mark.timeout(300)
def test_a_run_says_what_every_planner_reaches(small: World) -> None:
    result = run(small, 2, 1, cpu_limit_s=1000)
    assert result["scenarios"] == 2
    for row in result["rows"]:
        assert 0 < row["temporal"] <= row["idealBound"] * (1 + 1e-6)
        assert max(row["elastic"], row["selfTuning"], row["temporal"]) <= row["ideal"] <= row["idealBound"] + 1e-9
        # Ours may use more than two parts: at least what it reaches without turns, and less beside neighbours.
        assert row["oursAlone"] <= row["ours"] * ROUNDING
        assert row["oursBeside"] <= row["ours"] * ROUNDING
        assert row["ours"] * ROUNDING >= row["temporal"]
    assert result["planners"]["temporal"]["timesTemporal"] == 1


def test_a_run_ends_at_its_limit_and_says_so(small: World) -> None:
    assert "1 of 1023 scenarios" in as_table(run(small, 9, 1, cpu_limit_s=0))


def test_data_that_cannot_be_used_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--data", str(tmp_path)]) == 1
    assert f"{tmp_path}: no prof_data/mobilenetv2.csv" in capsys.readouterr().err
