"""benchmarks/fractions.py as a user runs it, on a trace made up here."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.fractions import compare, main, ours

HEADER = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"
PODS = [810, 110, 470, 320, 230, 650, 470, 460, 810, 320, 320, 160]


def trace(folder: Path, *rows: str) -> Path:
    pods = [f"p{i},1,1,1,{milli}," for i, milli in enumerate(PODS)]
    (folder / "openb_pod_list_made.csv").write_text(HEADER + "\n".join([*pods, *rows]) + "\n")
    return folder


def test_only_fractions_of_one_gpu_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace(tmp_path, "whole,1,1,1,1000,", "several,1,1,4,1000,", "none,1,1,0,0,")
    assert main([str(tmp_path), "-o", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["variant"] == "made"
    assert (row["pods"], row["volume"]) == (len(PODS), sum(PODS) / 1000)
    assert row["volume"] <= row["lowerBound"] <= row["gpus"] <= row["bestFitDecreasing"] <= row["bestFit"]
    assert row["ourLowerBound"] <= row["gpus"]


def test_ours_holds_every_pod_and_no_gpu_holds_more_than_itself() -> None:
    made = ours(PODS, len(PODS))
    assert sorted(slot.compute_percent * 10 for slot in made.slots) == sorted(PODS)
    used: dict[str, int] = {}
    for slot in made.slots:
        used[slot.device.gpu] = used.get(slot.device.gpu, 0) + slot.compute_percent
    assert max(used.values()) <= 100
    assert len(used) == made.gpus


def test_without_ours_it_says_nothing_of_ours() -> None:
    assert "gpus" not in compare("made", PODS, with_ours=False)


@pytest.mark.parametrize(
    ("rows", "says"),
    [(["odd,1,1,1,455,"], "gpu_milli 455 is no whole percent"), (["odd,1,1,one,450,"], "not a pod list")],
)
def test_data_that_cannot_be_used_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: list[str], says: str
) -> None:
    assert main([str(trace(tmp_path, *rows)), "--without-ours"]) == 1
    error = capsys.readouterr().err
    assert says in error
    assert "openb_pod_list_made.csv" in error


def test_a_folder_without_the_trace_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 1
    assert f"{tmp_path}: no openb_pod_list_*.csv" in capsys.readouterr().err


def test_as_a_program_it_does_not_hide_the_standard_library(tmp_path: Path) -> None:
    """Its own name is that of a module which others import."""
    script = Path(__file__).parents[2] / "benchmarks" / "fractions.py"
    done = subprocess.run([sys.executable, str(script), "--help"], capture_output=True, text=True, check=True)
    assert "DIR" in done.stdout
