"""What cannot be served is said: in the report, in the termination message, by the exit code; and is never ready."""

import os
import re
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from e2e.tuning_model import INPUT_SHAPE

from gpulet.nvidia.simulated_client import EXIT_CODE
from gpulet.v2.client import V2Client
from tests.serving.server import Server, infer, net

pytestmark = pytest.mark.timeout(240)


@pytest.mark.parametrize(
    ("path", "format_", "reason", "words"),
    [
        ("nowhere.onnx", "onnx", "ModelMissing", "nowhere.onnx is missing"),
        ("empty.onnx", "onnx", "ModelBroken", "empty.onnx is empty"),
        ("broken.onnx", "onnx", "ModelBroken", "broken.onnx is broken: .*INVALID_PROTOBUF"),
        ("alone.so", "tvm", "ModelMissing", "alone.json beside alone.so"),
        ("broken.so", "tvm", "ModelBroken", "broken.so cannot be served as tvm: .*Failed to load dynamic"),
        ("net.onnx", "tensorrt", "UnsupportedFormat", "format tensorrt needs a GPU"),
    ],
)
def test_what_cannot_be_served_is_reported_and_never_ready(
    server: Server, path: str, format_: str, reason: str, words: str
) -> None:
    (server.files / "empty.onnx").touch()
    for name in ("broken.onnx", "alone.so", "broken.so"):
        (server.files / name).write_bytes(b"this is not a model")
    tensor = '[{"name": "%s", "shape": [1, 3], "dtype": "float32"}]'
    (server.files / "broken.json").write_text(f'{{"inputs": {tensor % "x"}, "outputs": {tensor % "y"}}}')
    server.start(net(path=path, format=format_))
    assert server.process is not None
    while server.process.poll() is None:
        assert server.get("/ready")[0] != 200
        time.sleep(0.2)
    assert server.wait_end() == 1
    told = server.termination()
    error = told.error
    assert told.reason == reason
    assert error is not None
    assert "model net" in error and ("spec.model" in error)
    assert re.search(words, error, re.S), error


def test_it_ends_when_triton_dies(server: Server) -> None:
    """Failure case F11: ready is what is seen, not what was."""
    server.start(net())
    server.wait_ready()
    os.kill(server.triton_pid(), signal.SIGKILL)
    assert server.wait_end() == 1
    assert "tritonserver ended with code -9" in server.last_words()


def test_without_its_share_s_daemon_it_does_not_serve(server: Server) -> None:
    """Failure case B9: a client that cannot reach MPS must not run on without limits."""
    environment = server.start_daemon()
    assert server.daemon is not None
    server.daemon.kill()
    server.start(net(), **environment)
    assert server.wait_end() == 1
    assert "no MPS daemon" in server.last_words()


def test_on_a_gpu_too_it_does_not_start_without_its_daemon(server: Server) -> None:
    """Failure case B9, where CUDA itself would not notice."""
    server.start(net(), GPULET_DEVICE_SOURCE="nvml", CUDA_MPS_PIPE_DIRECTORY=str(server.folder))
    assert server.wait_end() == 1
    assert "no MPS daemon" in server.last_words()


def test_it_lives_and_dies_with_its_share(server: Server) -> None:
    environment = server.start_daemon()
    server.start(net(), **environment)
    server.wait_ready()
    assert server.report().compute_percent == 40
    with V2Client(server.http) as client:
        infer(client, np.zeros((1, *INPUT_SHAPE), dtype="float32"))
    triton = server.triton_pid()
    shared_memory = shared_memory_of(triton)
    assert shared_memory
    assert server.daemon is not None
    server.daemon.kill()
    assert server.wait_end() == EXIT_CODE
    assert "the share is gone" in server.last_words()
    with pytest.raises(ProcessLookupError):
        os.kill(triton, 0)
    assert not [path for path in shared_memory if Path(path).exists()], "the device's /dev/shm fills up"


def shared_memory_of(pid: int) -> set[str]:
    """Files of our own in /dev/shm that the process has mapped."""
    mapped = Path(f"/proc/{pid}/maps").read_text().split()
    return {word for word in mapped if word.startswith("/dev/shm/gpulet-")}
