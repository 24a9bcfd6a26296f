"""`gpulet serve` as a process with the real tritonserver on loopback, and a caller of it."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from e2e.tuning_model import write_grouped_net

from gpulet.api.workload import ServedModel, ServeReport, ServeSpec
from gpulet.nvidia import simulated_mps
from gpulet.v2.client import V2Client
from tests.pods import pods_program

_REFERENCE = """
import sys, numpy, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
numpy.save(sys.argv[3], session.run(None, {"input": numpy.load(sys.argv[2])})[0])
"""
# The library as a TuningJob stores it, but untuned, with the sidecar that is agreed between tuning and serving.
_COMPILE = """
import json, sys
from pathlib import Path
import onnx, tvm
from tvm.relax.frontend.onnx import from_onnx
from gpulet.tuning.linking import export
source, folder, batch = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
model = onnx.load(source)
described = {}
for side, tensors in (("inputs", model.graph.input), ("outputs", model.graph.output)):
    for tensor in tensors:
        tensor.type.tensor_type.shape.dim[0].dim_value = batch
    described[side] = [
        {"name": t.name, "shape": [d.dim_value for d in t.type.tensor_type.shape.dim], "dtype": "float32"}
        for t in tensors
    ]
cpu = str(tvm.get_global_func("target.llvm_get_system_cpu")())
target = tvm.target.Target({"kind": "llvm", "mcpu": cpu, "num-cores": 1})
export(tvm.compile(from_onnx(model, keep_params_in_input=False), target), folder / "tuned.so")
(folder / "tuned.json").write_text(json.dumps({"batch": batch, **described}))
"""


class Server:
    """One serving program with a small convolutional net ``net/net.onnx`` (dynamic batch)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.models = folder / "models"
        self.files = self.models / "net"
        self.files.mkdir(parents=True)
        write_grouped_net(self.files / "net.onnx", width=16, groups=4, blocks=1, kernel=3)
        temporary = folder / "tmp"
        temporary.mkdir()
        self.http, self.grpc, self.metrics, self.reports = free_ports(4)
        self.environment = os.environ | {
            "TMPDIR": str(temporary),
            "GPULET_MODEL_ROOT": str(self.models),
            "GPULET_TERMINATION_LOG": str(folder / "termination"),
            "GPULET_TRITON_PORTS": f"{self.http},{self.grpc},{self.metrics}",
            "GPULET_REPORT_PORT": str(self.reports),
            "GPULET_HTTP_PORT": str(self.http),
        }
        self.process: subprocess.Popen[bytes] | None = None
        self.daemon: subprocess.Popen[bytes] | None = None

    def start(self, model: ServedModel, **environment: str) -> None:
        spec = ServeSpec(models=[model], percentiles=[50.0, 99.0])
        log = (self.folder / "serve.log").open("ab")
        self.process = subprocess.Popen(
            [pods_program(), "serve", spec.model_dump_json(by_alias=True)],
            env=self.environment | environment,
            stdout=log,
            stderr=log,
        )

    def start_daemon(self) -> dict[str, str]:
        """An MPS daemon of a simulated device; answers what a client's environment holds."""
        pipe = self.folder / "pipe"
        pipe.mkdir()
        command = [sys.executable, "-I", "-S", simulated_mps.__file__, "-f"]
        environment = os.environ | {"CUDA_MPS_PIPE_DIRECTORY": str(pipe)}
        self.daemon = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        return {
            "GPULET_DEVICE_SOURCE": "simulated",
            "CUDA_MPS_PIPE_DIRECTORY": str(pipe),
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "40",
        }

    def get(self, path: str, port: int | None = None) -> tuple[int, str]:
        """(status, body), without ``port`` that of reports; status 0 where nobody answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port or self.reports}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def wait_ready(self, seconds: float = 90) -> None:
        deadline = time.monotonic() + seconds
        while self.get("/ready")[0] != 200:
            assert self.process is not None and self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.3)

    def wait_end(self, seconds: float = 90) -> int:
        """The program's exit code."""
        assert self.process is not None
        return self.process.wait(seconds)

    def triton_pid(self) -> int:
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        (pid,) = [int(p) for p in children if b"tritonserver" in Path(f"/proc/{p}/cmdline").read_bytes()]
        return pid

    def report(self) -> ServeReport:
        return ServeReport.model_validate(json.loads(self.get("/report")[1]))

    def log(self) -> str:
        return (self.folder / "serve.log").read_text()[-3000:]

    def termination(self) -> ServeReport:
        """What the kubelet would find; a report that is too long would be cut and unreadable."""
        message = (self.folder / "termination").read_bytes()
        assert len(message) <= 4096
        return ServeReport.model_validate(json.loads(message))

    def last_words(self) -> str:
        """Of a program that no model made fail: plain text, so that no status blames the model."""
        message = (self.folder / "termination").read_text()
        assert not message.startswith("{")
        return message

    def end(self) -> None:
        for process in (self.process, self.daemon):
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGTERM if process is self.process else signal.SIGKILL)
                process.wait(40)

    def compile(self, batch: int) -> None:
        """tuned.so and tuned.json of the net beside it."""
        self._in_pods_environment(_COMPILE, self.files / "net.onnx", self.files, batch)

    def reference(self, samples: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
        """What ONNX Runtime itself answers."""
        np.save(self.folder / "in.npy", samples)
        self._in_pods_environment(_REFERENCE, self.files / "net.onnx", self.folder / "in.npy", self.folder / "out.npy")
        answer: np.ndarray[Any, Any] = np.load(self.folder / "out.npy")
        return answer

    def _in_pods_environment(self, script: str, *arguments: object) -> None:
        python = Path(pods_program()).parent / "python"
        command = [str(python), "-c", script, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr[-2000:]


def free_ports(count: int) -> list[int]:
    """Of loopback, all different: other tests and other programs of this machine have theirs."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(s.getsockname()[1]) for s in sockets]


def net(**changes: Any) -> ServedModel:
    values = {"name": "net", "format": "onnx", "path": "net.onnx", "batch": 4, "queue_delay_microseconds": 2000}
    return ServedModel.model_validate(values | changes)


def infer(client: V2Client, samples: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    """Through the protocol with binary tensors; raises V2Error."""
    tensor = {
        "name": "input",
        "shape": list(samples.shape),
        "datatype": "FP32",
        "parameters": {"binary_data_size": samples.nbytes},
    }
    header = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    answer = client.infer("net", header + samples.tobytes(), {"Inference-Header-Content-Length": str(len(header))})
    end = answer.index(b"}]}") + 3
    shape = json.loads(answer[:end])["outputs"][0]["shape"]
    return np.frombuffer(answer[end:], dtype="float32").reshape(shape)
