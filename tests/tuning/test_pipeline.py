"""Tracker, server, clients and merge as the processes they are, on loopback; real TVM, real measurements."""

import hashlib
import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
from e2e.tuning_model import write_grouped_net

from gpulet.api.workload import (
    PROGRESS_PORT,
    RPC_SERVER_PORT,
    TRACKER_PORT,
    ServedModel,
    TuneProgress,
    TuneReport,
    TuneSpec,
)
from gpulet.tuning.records import client_progress
from gpulet.tuning.verdict import LEAST_GAIN
from tests.pods import pods_program, pods_python

pytestmark = pytest.mark.timeout(300)
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

    def start(
        self, program: str, spec: TuneSpec, *, ordinal: int = 0, port: int = RPC_SERVER_PORT
    ) -> subprocess.Popen[bytes]:
        log = (self.folder / f"{program}-{ordinal}.log").open("ab")
        process = subprocess.Popen(
            [pods_program(), program, spec.model_dump_json(by_alias=True, exclude_none=True)],
            env=self.environment | {"JOB_COMPLETION_INDEX": str(ordinal), "GPULET_RPC_PORT": str(port)},
            stdout=log,
            stderr=log,
            start_new_session=True,
            # As PID 1 of a container, which has no default action for it.
            preexec_fn=lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
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


def kill(process: subprocess.Popen[bytes]) -> None:
    """A process and all it started, as a node that goes away does."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def in_sessions_of(processes: list[subprocess.Popen[bytes]]) -> list[str]:
    """Commands of all processes in the sessions that ``processes`` lead or started."""
    leaders = {p.pid for p in processes}
    shown = subprocess.run(["ps", "-eo", "pid=,ppid=,sid=,stat=,args="], capture_output=True, text=True, check=True)
    rows = [line.split(None, 4) for line in shown.stdout.splitlines()]
    sessions = leaders | {int(r[2]) for r in rows if int(r[1]) in leaders}
    return [r[4] for r in rows if int(r[2]) in sessions and not r[3].startswith("Z")]


def test_two_clients_search_kills_lose_nothing_and_the_merge_is_right(job: Job) -> None:
    """Failure case A25: a restart at any step goes on from what is on disk."""
    spec = job.spec()
    tracker = job.start("tune-tracker", spec)
    servers = [job.start("tune-server", spec, ordinal=i, port=RPC_SERVER_PORT + 2 * i) for i in range(2)]
    clients = [job.start("tune-client", spec, ordinal=i) for i in range(2)]
    wait_for(lambda: client_progress(job.work, 0).trials > 0, what="a first trial", seconds=120)
    kill(clients[0])
    kill(tracker)
    assert client_progress(job.work, 0).trials > 0
    job.start("tune-tracker", spec)
    clients[0] = job.start("tune-client", spec, ordinal=0)
    assert [c.wait(180) for c in clients] == [0, 0]
    seen = progress()
    assert seen.servers == 2, "both registered again at the new tracker"
    assert all(c.finished for c in seen.clients)
    assert sum(c.trials for c in seen.clients) == TRIALS
    assert sum(c.failed for c in seen.clients) == 0, "no trial was used up while the tracker was away"
    assert job.start("tune-client", spec, ordinal=1).wait(30) == 0
    assert progress().clients == seen.clients, "a client that is started again after its end measures nothing"

    assert len(in_sessions_of(servers)) >= 4
    gone = in_sessions_of(servers)
    for server in servers:
        server.send_signal(signal.SIGTERM)
    assert [s.wait(20) for s in servers] == [0, 0]
    assert not set(gone) & set(in_sessions_of(servers)), "a server ends all it started"

    merge = job.start("tune-merge", spec)
    assert merge.wait(180) == 0
    report = job.report()
    assert report.error is None and report.records == TRIALS
    assert report.max_difference is not None and report.max_difference < 1e-3
    # A dozen random candidates on a busy machine may all be worse than what was there; then they must not be adopted.
    assert report.before_milliseconds and report.after_milliseconds and report.untuned_milliseconds
    gain = 1 - report.after_milliseconds / report.before_milliseconds
    assert not report.adopted or gain > LEAST_GAIN
    assert (
        report.model_digest
        == "sha256:" + hashlib.sha256((job.folder / "models/model/model.onnx").read_bytes()).hexdigest()
    )
    assert report.digest == "sha256:" + hashlib.sha256((job.work / "tuned.so").read_bytes()).hexdigest()
    sidecar = json.loads((job.work / "tuned.json").read_text())
    assert sidecar["inputs"] == [{"name": "input", "shape": [2, 3, 28, 28], "dtype": "float32"}]
    assert sidecar["outputs"] == [{"name": "output", "shape": [2, 10], "dtype": "float32"}]


# Ends the process that serves this session, as a candidate with a bad access does; then asks for another session.
CRASH = """
import sys, time, psutil
from tvm import rpc
tracker, server, key = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
session = rpc.connect_tracker("127.0.0.1", tracker).request(key, session_timeout=30)
leaf = [p for p in psutil.Process(server).children(recursive=True) if not p.children()]
for process in leaf:
    process.kill()
time.sleep(1)
again = rpc.connect_tracker("127.0.0.1", tracker).request(key, session_timeout=30)
assert again.cpu(0).exist
print("measures again", flush=True)
"""


def test_a_candidate_that_crashes_does_not_end_the_measuring(job: Job) -> None:
    """TVM's own server is deaf after a crash in a session."""
    spec = job.spec()
    job.start("tune-tracker", spec)
    server = job.start("tune-server", spec)

    def registered() -> bool:
        try:
            return progress().servers == 1
        except OSError:
            return False

    wait_for(registered, what="the server is registered", seconds=60)
    arguments = [pods_python(), "-c", CRASH, str(TRACKER_PORT), str(server.pid), spec.tracker_key]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=90, check=False)
    assert "measures again" in done.stdout, done.stderr


@pytest.mark.parametrize("program", ["tune-tracker", "tune-client", "tune-merge"])
def test_a_program_ends_at_once_when_its_pod_is_deleted(job: Job, program: str) -> None:
    """In the middle of imports, of a search, of a build; the grace period of its pod is 5 s."""
    spec = job.spec(trials=4000)
    if program == "tune-client":
        job.start("tune-tracker", spec)
        job.start("tune-server", spec)
    process = job.start(program, spec)
    if program == "tune-client":
        wait_for(lambda: client_progress(job.work, 0).trials > 0, what="a first trial", seconds=120)
    wait_for(lambda: len(in_sessions_of([process])) > 1, what="it works in a child", seconds=30)
    time.sleep(0.5)
    started = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(5) == 128 + signal.SIGTERM
    wait_for(lambda: not in_sessions_of([process]), what="nothing of it is left", seconds=5)
    assert time.monotonic() - started < 5


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": ServedModel(name="model", format="tensorrt", path="model.onnx")}, "NotTunable"),
        ({"model": ServedModel(name="model", format="onnx", path="nowhere.onnx")}, "ModelMissing"),
        ({"model": ServedModel(name="model", format="onnx", path="broken.onnx")}, "ModelBroken"),
        ({"model": ServedModel(name="model", format="onnx", path="fixed.onnx", batch=4)}, "NotTunable"),
    ],
)
def test_a_model_that_cannot_be_tuned_is_reported_with_a_reason(job: Job, change: dict[str, Any], reason: str) -> None:
    models = job.folder / "models" / "model"
    (models / "broken.onnx").write_bytes(b"not a model")
    fixed = onnx.load(models / "model.onnx")
    fixed.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(fixed, models / "fixed.onnx")
    merge = job.start("tune-merge", job.spec(**change))
    assert merge.wait(120) == 1
    report = job.report()
    assert report.reason == reason
    assert report.error
