"""`gpulet serve` as a process with the real tritonserver: answers, batching, drain."""

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from e2e.tuning_model import INPUT_SHAPE

from gpulet.metrics.triton import Scrape, parse
from gpulet.serving.source import digest_of
from gpulet.v2.client import V2Client, V2Error
from tests.serving.server import Server, infer, net

pytestmark = pytest.mark.timeout(240)


def samples(count: int) -> "np.ndarray[tuple[int, ...], np.dtype[np.float32]]":
    return np.random.default_rng(count).random((count, *INPUT_SHAPE), dtype="float32")


def scrape(server: Server) -> Scrape:
    return parse(server.get("/metrics", server.metrics)[1], "net", at_s=0.0)


def test_a_model_is_served_batched_measured_and_drained_without_loss(server: Server) -> None:
    """Failure cases A23, H2: ready only when warm, and no request is lost on the way out."""
    server.start(net())
    server.wait_ready()
    report = server.report()
    assert report.error is None and report.models[0].ready and report.models[0].digest.startswith("sha256:")
    with V2Client(server.http) as client:
        for count in (1, 3, 4):
            asked = samples(count)
            np.testing.assert_allclose(infer(client, asked), server.reference(asked), rtol=1e-4, atol=1e-5)
        with pytest.raises(V2Error, match="batch-size must be <= 4"):
            infer(client, samples(5))
    before = scrape(server)
    assert {quantile for quantile, _ in before.quantiles_us} == {0.5, 0.99}
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: call_often(server, 25), range(8)))
    after = scrape(server)
    assert after.requests - before.requests == 200
    assert after.executions - before.executions < 150, "requests at the same time were not batched"
    lost, answered = drain_under_load(server)
    assert lost == 0 and answered > 20
    assert server.wait_end(40) == 0


def call_often(server: Server, times: int) -> None:
    with V2Client(server.http) as client:
        for _ in range(times):
            infer(client, samples(1))


def drain_under_load(server: Server) -> tuple[int, int]:
    """Four callers that, as a Service's callers do, stop coming a while after the pod is not ready. (lost, answered)"""
    stop, counts = threading.Event(), {"lost": 0, "answered": 0}
    lock = threading.Lock()

    def call() -> None:
        with V2Client(server.http) as client:
            while not stop.is_set():
                try:
                    infer(client, samples(1))
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
    # Longer than the least time of a drain: it is the traffic that decides.
    time.sleep(5.0)
    stop.set()
    for caller in callers:
        caller.join()
    return counts["lost"], counts["answered"]


def test_a_tuned_library_of_a_fixed_batch_answers_requests_of_any_size(server: Server) -> None:
    server.compile(batch=2)
    server.start(net(format="tvm", path="tuned.so", batch=5))
    server.wait_ready()
    with V2Client(server.http) as client:
        for count in (1, 2, 3, 5):
            asked = samples(count)
            np.testing.assert_allclose(infer(client, asked), server.reference(asked), rtol=1e-3, atol=1e-4)


def test_a_file_that_is_replaced_behind_a_tuned_artifact_is_seen(server: Server) -> None:
    """The artifact goes on serving; the report names the file that lies at the model's URI now."""
    server.compile(batch=2)
    own = server.folder / "source" / "net" / "net.onnx"
    own.parent.mkdir(parents=True)
    own.write_bytes((server.files / "net.onnx").read_bytes())
    environment = {"GPULET_SOURCE_ROOT": str(server.folder / "source")}
    server.start(net(format="tvm", path="tuned.so", batch=2, source="net.onnx"), **environment)
    server.wait_ready()
    first = server.report().models[0]
    assert first.source_digest == digest_of(own) != first.digest
    fresh = own.with_name("fresh")
    fresh.write_bytes(own.read_bytes() + b"x")
    fresh.rename(own)
    assert server.report().models[0].source_digest == digest_of(own) != first.source_digest
    assert server.report().models[0].digest == first.digest
    own.unlink()
    assert server.report().models[0].source_digest is not None, "a file that is gone says nothing of the next one"
    assert server.get("/ready")[0] == 200


def test_an_onnx_file_of_a_fixed_batch_answers_requests_of_any_size(server: Server) -> None:
    model = onnx.load(server.files / "net.onnx")
    for tensor in (*model.graph.input, *model.graph.output):
        tensor.type.tensor_type.shape.dim[0].dim_value = 2
    onnx.save(model, server.files / "fixed.onnx")
    server.start(net(path="fixed.onnx"))
    server.wait_ready()
    with V2Client(server.http) as client:
        for count in (1, 2, 3):
            asked = samples(count)
            np.testing.assert_allclose(infer(client, asked), server.reference(asked), rtol=1e-4, atol=1e-5)


OWN_PROGRAM = """
import numpy as np
import triton_python_backend_utils as pb

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "input", "data_type": "TYPE_FP32", "dims": [2]})
        config.add_output({"name": "output", "data_type": "TYPE_FP32", "dims": [2]})
        return config

    def execute(self, requests):
        taken = [pb.get_input_tensor_by_name(r, "input").as_numpy() for r in requests]
        return [pb.InferenceResponse([pb.Tensor("output", t * 2)]) for t in taken]
"""


def test_a_user_s_own_python_program_names_its_tensors_itself(server: Server) -> None:
    (server.files / "mine.py").write_text(OWN_PROGRAM)
    server.start(net(format="python", path="mine.py"))
    server.wait_ready()
    asked = np.array([[1, 2], [3, 4]], dtype="float32")
    with V2Client(server.http) as client:
        np.testing.assert_array_equal(infer(client, asked), asked * 2)


def test_a_long_inference_is_answered_and_an_idle_connection_holds_nobody_up(server: Server) -> None:
    """Failure case A23, with what a Service's callers keep: connections."""
    slow = OWN_PROGRAM.replace("        taken =", "        time.sleep(4)\n        taken =")
    slow = slow.replace("import", "import time\nimport", 1)
    (server.files / "slow.py").write_text(slow)
    server.start(net(format="python", path="slow.py", batch=1))
    server.wait_ready()
    assert server.process is not None
    asked = np.ones((1, 2), dtype="float32")
    with V2Client(server.http) as idle, V2Client(server.http) as client, ThreadPoolExecutor(1) as caller:
        idle.metadata("net")
        # Begun when the drain has already seen a quiet second, ended long after its least time.
        server.process.send_signal(signal.SIGTERM)
        time.sleep(2.0)
        answer = caller.submit(infer, client, asked)
        ended = time.monotonic()
        np.testing.assert_array_equal(answer.result(20), asked * 2)
        assert server.wait_end(20) == 0
        assert time.monotonic() - ended < 12


def test_callers_may_infer_and_nothing_else(server: Server) -> None:
    """Loading a model runs its code: only the serving program itself may."""
    server.start(net())
    server.wait_ready()
    with V2Client(server.http) as client, pytest.raises(V2Error, match="restricted"):
        client.load("net", {})
    assert server.get("/ready")[0] == 200


def test_sigterm_while_it_starts_ends_it_in_good_order(server: Server, tmp_path: Path) -> None:
    server.start(net())
    assert server.process is not None
    while "loading: net" not in server.log():
        time.sleep(0.02)
    server.process.send_signal(signal.SIGTERM)
    assert server.wait_end(40) == 0
    assert not (tmp_path / "termination").exists()
