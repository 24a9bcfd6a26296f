"""`gpulet serve`: brings models to a Triton in this share, warms them up, says when they serve, drains at the end."""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from gpulet.api.workload import MODEL_ROOT, REPORT_PORT, ModelReport, ServeReport, ServeSpec
from gpulet.nvidia.simulated_client import EXIT_CODE, connect_if_simulated
from gpulet.serving import triton
from gpulet.serving.inspection import ModelFileError
from gpulet.serving.report import Answer, serve_report
from gpulet.serving.repository import Prepared, write_repository
from gpulet.v2.client import V2Client, V2Error

log = logging.getLogger("gpulet.serve")

WARM_UP_INFERENCES = 3
_DRAIN_S = 3.0
"""After readiness is gone, what callers already sent still arrives for about this long."""
_POLL_S = 0.5


@dataclass
class Server:
    """The state of one serving program."""

    spec: ServeSpec
    ports: triton.Ports
    prepared: list[Prepared] = field(default_factory=list)
    warm: bool = False
    stopping: threading.Event = field(default_factory=threading.Event)
    error: str | None = None
    process: "subprocess.Popen[bytes] | None" = None

    def report(self) -> ServeReport:
        """What is served and how it is."""
        percent = os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
        return ServeReport(
            models=[ModelReport(name=p.model.name, digest=p.digest, ready=self.ready()) for p in self.prepared],
            runtime="triton",
            runtime_version=triton.version(),
            compute_percent=round(float(percent)) if percent else None,
            error=self.error,
        )

    def ready(self) -> bool:
        """Every model is served and warm, and nobody has asked us to go."""
        return self.warm and not self.stopping.is_set() and self.process is not None and self.process.poll() is None


def main(spec: str) -> None:
    """Entry point. Exits 0 after SIGTERM, 1 for a model that cannot be served, else as Triton ended."""
    logging.basicConfig(level="INFO", format="%(asctime)s %(name)s %(message)s")
    server = Server(ServeSpec.model_validate_json(spec), _ports())
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, lambda *_: server.stopping.set())
    _listen(server)
    connection = connect_if_simulated(lambda reason: _lost(server, reason))
    with tempfile.TemporaryDirectory(prefix="gpulet-serve-") as folder:
        code = _run(server, Path(folder))
    if connection is not None:
        connection.close()
    sys.exit(code)


def _run(server: Server, work: Path) -> int:
    try:
        server.prepared = write_repository(
            server.spec,
            models_root=Path(os.environ.get("GPULET_MODEL_ROOT", MODEL_ROOT)),
            repository=work / "repository",
            on_gpu=os.environ.get("GPULET_DEVICE_SOURCE") == "nvml",
        )
        server.process = triton.start(server.spec, repository=work / "repository", work=work, ports=server.ports)
        _warm_up(server)
    except (ModelFileError, V2Error) as error:
        return _fail(server, str(error))
    while not server.stopping.wait(_POLL_S):
        if server.process.poll() is not None:
            return _fail(server, f"tritonserver ended with code {server.process.returncode}: see the log of this pod")
    return _drain(server)


def _warm_up(server: Server) -> None:
    """Waits for Triton, then a few inferences of each model: the first ones are slow, and no caller should pay that."""
    with V2Client(server.ports.http) as client:
        while not client.ready():
            if server.stopping.wait(_POLL_S):
                return
            assert server.process is not None
            if server.process.poll() is not None:
                raise V2Error(f"tritonserver ended with code {server.process.returncode} while loading its models")
        for prepared in server.prepared:
            _warm_model(client, prepared)
    server.warm = True
    log.info("serving %s", ", ".join(p.model.name for p in server.prepared))


def _warm_model(client: V2Client, prepared: Prepared) -> None:
    name = prepared.model.name
    try:
        metadata = client.metadata(name)
        body, headers = client.batch(metadata, prepared.model.batch)
    except ValueError as error:
        log.warning("model %s is not warmed up: %s", name, error)
        return
    for _ in range(WARM_UP_INFERENCES * prepared.model.instances):
        try:
            client.infer(name, body, headers)
        except V2Error as error:
            raise V2Error(f"model {name} is broken: its first inference failed: {error}") from error


def _drain(server: Server) -> int:
    """Not ready at once; what is still sent is answered; then Triton finishes what is in flight and ends."""
    log.info("draining")
    time.sleep(_DRAIN_S)
    _end(server, signal.SIGTERM)
    return 0


def _fail(server: Server, message: str) -> int:
    server.error = message
    log.error("%s", message)
    path = Path(os.environ.get("GPULET_TERMINATION_LOG", "/dev/termination-log"))
    with contextlib.suppress(OSError):
        path.write_text(server.report().model_dump_json(by_alias=True, exclude_none=True))
    _end(server, signal.SIGTERM)
    return 1


def _lost(server: Server, reason: str) -> None:
    """Without its daemon a client has no GPU: it ends as a CUDA program would."""
    log.error("%s", reason)
    _end(server, signal.SIGKILL)
    os._exit(EXIT_CODE)


def _end(server: Server, sign: signal.Signals) -> None:
    if server.process is None or server.process.poll() is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.process.pid, sign)
    try:
        server.process.wait(25)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.process.pid, signal.SIGKILL)


def _listen(server: Server) -> None:
    def report() -> Answer:
        return 200, server.report().model_dump_json(by_alias=True, exclude_none=True)

    def ready() -> Answer:
        return (200 if server.ready() else 503), "{}"

    def healthz() -> Answer:
        return 200, "{}"

    port = int(os.environ.get("GPULET_REPORT_PORT", REPORT_PORT))
    serve_report(port, {"/report": report, "/ready": ready, "/healthz": healthz})


def _ports() -> triton.Ports:
    """Those of the contract; tests on one machine choose others."""
    base = os.environ.get("GPULET_TRITON_PORTS")
    if base is None:
        return triton.Ports()
    http, grpc, metrics = (int(p) for p in base.split(","))
    return triton.Ports(http, grpc, metrics)
