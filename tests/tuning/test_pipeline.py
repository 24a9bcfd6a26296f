"""Tracker, server, clients and merge as the processes they are, on loopback; real TVM, real measurements."""

import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.tuning_model import write_grouped_net

from gpulet.api.workload import PROGRESS_PORT, ServedModel, TuneProgress, TuneReport, TuneSpec
from gpulet.tuning.records import client_progress
from tests.pods import pods_program

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("tuning-ports")]
TRIALS = 12


class Job:
    """One tuning on this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.work, models = folder / "work", folder / "models"
        self.work.mkdir()
        (models / "model").mkdir(parents=True)
        write_grouped_net(models / "model" / "model.onnx", width=32, groups=8, blocks=2, kernel=3)
        self.report_path = folder / "report.json"
        self.environment = os.environ | {
            "GPULET_WORK_ROOT": str(self.work),
            "GPULET_MODEL_ROOT": str(models),
            "GPULET_TERMINATION_LOG": str(self.report_path),
            "POD_IP": "127.0.0.1",
        }
        self.processes: list[subprocess.Popen[bytes]] = []

    def spec(self, **changes: Any) -> TuneSpec:
        model = ServedModel(name="model", format="onnx", path="model.onnx", batch=2)
        values: dict[str, Any] = {
            "job": "j", "model": model, "compute_percent": 100, "trials": TRIALS, "clients": 2,
            "tracker_host": "127.0.0.1", "strategy": "replay-trace",
        }  # fmt: skip
        return TuneSpec(**(values | changes))

    def start(self, program: str, spec: TuneSpec, *, ordinal: int = 0) -> subprocess.Popen[bytes]:
        log = (self.folder / f"{program}-{ordinal}.log").open("ab")
        process = subprocess.Popen(
            [pods_program(), program, spec.model_dump_json(by_alias=True, exclude_none=True)],
            env=self.environment | {"JOB_COMPLETION_INDEX": str(ordinal)},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        self.processes.append(process)
        return process

    def report(self) -> TuneReport:
        return TuneReport.model_validate(json.loads(self.report_path.read_text()))

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    made.end()


def wait_for(condition: Callable[[], bool], *, what: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.2)


def progress() -> TuneProgress:
    with urllib.request.urlopen(f"http://127.0.0.1:{PROGRESS_PORT}/progress", timeout=10) as answer:
        return TuneProgress.model_validate(json.load(answer))


def test_two_clients_search_a_kill_loses_nothing_and_the_merge_is_right(job: Job) -> None:
    """Failure case A25: a restart at any step goes on from what is on disk."""
    spec = job.spec()
    job.start("tune-tracker", spec)
    job.start("tune-server", spec)
    clients = [job.start("tune-client", spec, ordinal=i) for i in range(2)]
    wait_for(lambda: client_progress(job.work, 0).trials > 0, what="a first trial", seconds=120)
    os.killpg(clients[0].pid, signal.SIGKILL)
    clients[0].wait()
    survived = client_progress(job.work, 0).trials
    assert survived > 0
    clients[0] = job.start("tune-client", spec, ordinal=0)
    assert [c.wait(180) for c in clients] == [0, 0]
    seen = progress()
    assert seen.servers == 1
    assert all(c.finished for c in seen.clients)
    assert sum(c.trials for c in seen.clients) == TRIALS
    merge = job.start("tune-merge", spec)
    assert merge.wait(180) == 0
    report = job.report()
    assert report.error is None and report.records > 0
    assert report.max_difference is not None and report.max_difference < 1e-3
    assert report.after_milliseconds is not None and report.untuned_milliseconds is not None
    assert report.after_milliseconds < report.untuned_milliseconds
    sidecar = json.loads((job.work / "tuned.json").read_text())
    assert sidecar["inputs"] == [{"name": "input", "shape": [2, 3, 28, 28], "dtype": "float32"}]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": ServedModel(name="model", format="tensorrt", path="model.onnx")}, "NotTunable"),
        ({"model": ServedModel(name="model", format="onnx", path="nowhere.onnx")}, "ModelMissing"),
        ({"model": ServedModel(name="model", format="onnx", path="broken.onnx")}, "ModelBroken"),
    ],
)
def test_a_model_that_cannot_be_tuned_is_reported_with_a_reason(job: Job, change: dict[str, Any], reason: str) -> None:
    (job.folder / "models" / "model" / "broken.onnx").write_bytes(b"not a model")
    merge = job.start("tune-merge", job.spec(**change))
    assert merge.wait(120) == 1
    report = job.report()
    assert report.reason == reason
    assert report.error
