"""`gpulet serve` as a process with the real tritonserver, on loopback."""

import json
import os
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from e2e.tuning_model import INPUT_SHAPE, write_grouped_net

from gpulet.api.workload import ProfileReport, ProfileSpec, ServedModel, ServeReport, ServeSpec
from gpulet.metrics.triton import parse
from gpulet.v2.client import V2Client, V2Error
from tests.pods import pods_program

pytestmark = [pytest.mark.timeout(180), pytest.mark.xdist_group("triton-ports")]
HTTP, GRPC, METRICS, REPORT = 18000, 18001, 18002, 18003


class Server:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.models = folder / "models"
        (self.models / "net").mkdir(parents=True)
        write_grouped_net(self.models / "net" / "net.onnx", width=16, groups=4, blocks=1, kernel=3)
        self.environment = os.environ | {
            "GPULET_MODEL_ROOT": str(self.models),
            "GPULET_TERMINATION_LOG": str(folder / "termination"),
            "GPULET_TRITON_PORTS": f"{HTTP},{GRPC},{METRICS}",
            "GPULET_REPORT_PORT": str(REPORT),
            "GPULET_HTTP_PORT": str(HTTP),
        }
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, model: ServedModel, **changes: Any) -> None:
        spec = ServeSpec(models=[model], percentiles=[50.0, 99.0])
        log = (self.folder / "serve.log").open("ab")
        self.process = subprocess.Popen(
            [pods_program(), "serve", spec.model_dump_json(by_alias=True)],
            env=self.environment | changes,
            stdout=log,
            stderr=log,
        )

    def get(self, path: str, port: int = REPORT) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, ""
        except OSError:
            return 0, ""

    def wait_ready(self, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while self.get("/ready")[0] != 200:
            assert self.process is not None and self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.3)

    def log(self) -> str:
        return (self.folder / "serve.log").read_text()[-3000:]

    def termination(self) -> ServeReport:
        return ServeReport.model_validate(json.loads((self.folder / "termination").read_text()))

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(40)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path)
    yield made
    made.end()


def onnx(**changes: Any) -> ServedModel:
    values = {"name": "net", "format": "onnx", "path": "net.onnx", "batch": 4, "queue_delay_microseconds": 2000}
    return ServedModel.model_validate(values | changes)


def infer(client: V2Client, samples: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    """Through the protocol with binary tensors."""
    header = json.dumps(
        {
            "inputs": [
                {
                    "name": "input",
                    "shape": list(samples.shape),
                    "datatype": "FP32",
                    "parameters": {"binary_data_size": samples.nbytes},
                }
            ],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    answer = client.infer("net", header + samples.tobytes(), {"Inference-Header-Content-Length": str(len(header))})
    end = answer.index(b"}]}") + 3
    shape = json.loads(answer[:end])["outputs"][0]["shape"]
    return np.frombuffer(answer[end:], dtype="float32").reshape(shape)


def test_a_model_is_served_batched_measured_and_drained_without_loss(server: Server) -> None:
    """Failure cases A23, H2: ready only when warm, and no request is lost on the way out."""
    server.start(onnx())
    server.wait_ready()
    report = ServeReport.model_validate(json.loads(server.get("/report")[1]))
    assert report.error is None and report.models[0].ready and report.models[0].digest.startswith("sha256:")
    samples = np.random.default_rng(0).random((3, *INPUT_SHAPE), dtype="float32")
    with V2Client(HTTP) as client:
        together = infer(client, samples)
        one_by_one = np.concatenate([infer(client, samples[i : i + 1]) for i in range(3)])
    assert together.shape == (3, 10)
    np.testing.assert_allclose(together, one_by_one, rtol=1e-3, atol=1e-5)
    first = parse(server.get("/metrics", METRICS)[1], "net", at_s=0.0)
    lost, answered = drain_under_load(server)
    assert lost == 0 and answered > 20
    assert first.requests >= 4
    assert {q for q, _ in first.quantiles_us} == {0.5, 0.99}
    assert server.process is not None and server.process.wait(40) == 0


def drain_under_load(server: Server) -> tuple[int, int]:
    """Four callers that, as a Service's callers do, stop coming once the pod is not ready. (lost, answered)."""
    stop, counts = threading.Event(), {"lost": 0, "answered": 0}
    lock = threading.Lock()

    def call() -> None:
        sample = np.zeros((1, *INPUT_SHAPE), dtype="float32")
        with V2Client(HTTP) as client:
            while not stop.is_set():
                try:
                    infer(client, sample)
                    outcome = "answered"
                except V2Error:
                    outcome = "lost"
                with lock:
                    counts[outcome] += 1

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    time.sleep(1.0)
    assert server.process is not None
    server.process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + 10
    while server.get("/ready")[0] == 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(1.0)
    stop.set()
    for caller in callers:
        caller.join()
    return counts["lost"], counts["answered"]


@pytest.mark.parametrize(("path", "word"), [("nowhere.onnx", "missing"), ("broken.onnx", "broken")])
def test_a_missing_or_broken_file_is_reported_and_never_ready(server: Server, path: str, word: str) -> None:
    (server.models / "net" / "broken.onnx").write_bytes(b"this is not a model")
    server.start(onnx(path=path))
    assert server.process is not None and server.process.wait(60) == 1
    error = server.termination().error
    assert error is not None and word in error and "net" in error and "spec.model.uri" in error


def test_without_its_share_s_daemon_it_does_not_serve(server: Server, tmp_path: Path) -> None:
    """Failure case B9: a client that cannot reach MPS must not run on without limits."""
    server.start(
        onnx(),
        GPULET_DEVICE_SOURCE="simulated",
        CUDA_MPS_PIPE_DIRECTORY=str(tmp_path / "pipe"),
        CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="40",
    )
    assert server.process is not None and server.process.wait(60) != 0
    assert server.get("/ready")[0] != 200
    assert "no MPS daemon" in server.log()


def test_the_prober_measures_what_is_served_beside_it(server: Server) -> None:
    server.start(onnx(queue_delay_microseconds=0))
    spec = ProfileSpec(
        model="net", product="P", compute_percent=50, memory_mebibytes=1024, batches=[1, 4], seconds_per_point=0.5
    )
    done = subprocess.run(
        [pods_program(), "profile-run", spec.model_dump_json(by_alias=True, exclude_none=True)],
        env=server.environment | {"GPULET_TERMINATION_LOG": str(server.folder / "profile")},
        timeout=120,
        check=False,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    text = (server.folder / "profile").read_text()
    assert len(text.encode()) <= 4096
    report = ProfileReport.model_validate(json.loads(text))
    assert [p.batch for p in report.points] == [1, 4]
    for point in report.points:
        latency = point.latency_microseconds
        assert 0 < latency.p50 <= latency.p99
        assert point.throughput_per_second == pytest.approx(point.batch * 1e6 / latency.mean, rel=0.01)
