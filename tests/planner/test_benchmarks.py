"""The benchmarks on made-up data in the published form: several scenarios, absent models, odd objectives."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Three models; latency in s per batch, throughput per process; one row has run out of memory."""
    (tmp_path / "prof_data").mkdir()
    (tmp_path / "SLO").mkdir()
    for name, work in (("alpha", 0.004), ("beta", 0.009), ("gamma", 0.002)):
        lines = ["Mig instance,Batch size,Workload Number,Throughput,Latency"]
        for size in (1, 2, 3, 4, 7):
            for batch in (1, 4, 16):
                for number in range(1, 6):
                    seconds = work * (1 + batch / 4) * number**0.9 / size**0.9
                    row = (0, 0) if (name, size, batch) == ("beta", 1, 16) else (batch / seconds, seconds)
                    lines.append(f"{size},{batch},{number},{row[0]:.3f},{row[1]:.3f}")
        (tmp_path / "prof_data" / f"{name}.csv").write_text("\n".join(lines))
    (tmp_path / "SLO" / "SLO_latency.csv").write_text("100,200.5,N/A\n100,200.5,60\n50,120,40\n")
    (tmp_path / "SLO" / "SLO_req_rate.csv").write_text("900,300,N/A\n2000,900,4000\n5000,1500,\n")
    return tmp_path


def run(script: str, *arguments: str) -> list[dict[str, object]]:
    command = [sys.executable, str(ROOT / "benchmarks" / script), *arguments, "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=50)
    rows: list[dict[str, object]] = json.loads(done.stdout)
    return rows


def test_as_many_scenarios_as_the_rate_file_has_lines(data: Path) -> None:
    rows = run("parvagpu.py", str(data))
    assert [r["scenario"] for r in rows] == ["S1", "S2", "S3"]
    assert [r["models"] for r in rows] == [2, 3, 2]
    for row in rows:
        assert row["gpus"] == row["lowerBound"]
        assert row["boundKind"] == "proven"
        assert row["faults"] == []
        assert {"gpus", "lowerBound", "boundKind", "solveSeconds"} <= row.keys()
    assert [r["scenario"] for r in run("parvagpu.py", str(data), "--scenario", "S2")] == ["S2"]


def test_generated_fleets_are_near_their_bound(data: Path) -> None:
    rows = run("generated.py", str(data), "--models", "20", "60", "--means", "0.6", "--seeds", "1")
    assert {r["models"] for r in rows} == {20, 60}
    for row in rows:
        assert isinstance(row["gpus"], int)
        assert isinstance(row["lowerBound"], int)
        assert row["lowerBound"] <= row["gpus"] <= row["lowerBound"] + 1
        assert row["faults"] == []
        assert row["peakMebibytes"]


def test_time_sharing_saves_gpus_on_small_models(data: Path) -> None:
    for row in run("generated.py", str(data), "--models", "60", "--seeds", "1", "--time-sharing"):
        assert isinstance(row["gpus"], int)
        assert isinstance(row["dedicatedGpus"], int)
        assert isinstance(row["lowerBound"], int)
        assert row["lowerBound"] <= row["gpus"] < row["dedicatedGpus"]
        assert row["boundKind"] == "volume"
        assert row["faults"] == []
