"""`gpulet serve`: brings models to a Triton in this share, warms them up, says when they serve, drains at the end."""

import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from gpulet.api.workload import MODEL_ROOT, REPORT_PORT, SOURCE_ROOT, ServeSpec
from gpulet.nvidia.simulated_client import EXIT_CODE, ShareUnavailableError, connect_if_simulated
from gpulet.serving import triton
from gpulet.serving.drain import MOST_S, wait_until_quiet
from gpulet.serving.inspection import ModelFileError
from gpulet.serving.report import serve_report
from gpulet.serving.repository import Prepared, write_repository
from gpulet.serving.state import Server
from gpulet.serving.warmup import warm_up
from gpulet.v2.client import V2Client, V2Error

log = logging.getLogger("gpulet.serve")

_POLL_S = 0.25


class ModelError(RuntimeError):
    """A model cannot be served; the message names it, its file and the remedy."""


class TritonError(RuntimeError):
    """Triton ended, or never answered: no model is to blame, and another try may do."""


def main(spec: str) -> None:
    """Entry point. Exits 0 after SIGTERM, 1 for what cannot be served, EXIT_CODE when the share's daemon goes away."""
    logging.basicConfig(level="INFO", format="%(asctime)s %(name)s %(message)s")
    server = Server(_ports())
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, lambda *_: server.stopping.set())
    serve_report(int(os.environ.get("GPULET_REPORT_PORT", REPORT_PORT)), server)
    try:
        code = _run(server, spec)
    except ModelFileError as error:
        code = _refuse(server, str(error), error.reason)
    except (ValidationError, ModelError) as error:
        code = _refuse(server, str(error), "ModelBroken")
    except (ShareUnavailableError, TritonError) as error:
        code = _give_up(server, str(error))
    finally:
        if server.triton is not None:
            server.triton.end()
    sys.exit(code)


def _run(server: Server, text: str) -> int:
    spec = ServeSpec.model_validate_json(text)
    connect_if_simulated(lambda reason: _lost(server, reason))
    _check_daemon()
    work = Path(tempfile.gettempdir()) / "gpulet-serve"
    # A restarted container finds what its predecessor wrote.
    shutil.rmtree(work, ignore_errors=True)
    on_gpu = os.environ.get("GPULET_DEVICE_SOURCE") == "nvml"
    models_root = Path(os.environ.get("GPULET_MODEL_ROOT", MODEL_ROOT))
    sources_root = Path(os.environ.get("GPULET_SOURCE_ROOT", SOURCE_ROOT))
    server.prepared = write_repository(
        spec, models_root=models_root, sources_root=sources_root, repository=work / "repository", on_gpu=on_gpu
    )
    server.triton = triton.start(spec, work=work, ports=server.ports, on_gpu=on_gpu)
    _bring_up(server, server.triton)
    while not server.stopping.wait(_POLL_S):
        _check_alive(server.triton)
    log.info("draining")
    wait_until_quiet(server.triton.traffic, most_s=MOST_S + spec.patience_seconds)
    with suppress(V2Error):
        server.triton.unload((p.model.name for p in server.prepared), patience_s=spec.patience_seconds)
    return 0


def _bring_up(server: Server, running: triton.Triton) -> None:
    """Waits for Triton, then loads and warms each model; returns early at SIGTERM. Raises ModelError, TritonError."""
    with V2Client(server.ports.http, timeout_s=300.0) as client:
        while not client.live():
            _check_alive(running)
            if server.stopping.wait(_POLL_S):
                return
        for prepared in server.prepared:
            _bring_up_model(client, prepared, running)
            if server.stopping.is_set():
                return
    server.warm = True
    log.info("serving %s", ", ".join(p.model.name for p in server.prepared))


def _bring_up_model(client: V2Client, prepared: Prepared, running: triton.Triton) -> None:
    model, started = prepared.model, time.monotonic()
    try:
        client.load(model.name, running.key)
        warm_up(client, model, http_port=running.ports.http)
    except V2Error as error:
        _check_alive(running)
        raise ModelError(
            f"model {model.name}: file {model.path} cannot be served as {model.format}: {error}; "
            "replace the file at spec.model.uri or correct spec.model.format"
        ) from error
    log.info("model %s is loaded and warm after %.1f s", model.name, time.monotonic() - started)


def _check_alive(running: triton.Triton) -> None:
    code = running.process.poll()
    if code is not None:
        raise TritonError(f"tritonserver ended with code {code}: see the log of this pod")


def _check_daemon() -> None:
    """A CUDA program that does not reach its MPS daemon runs on outside of its share, so none is started (case B9)."""
    pipe = os.environ.get("CUDA_MPS_PIPE_DIRECTORY")
    if pipe is not None and not (Path(pipe) / "control").is_socket():
        raise ShareUnavailableError(f"no MPS daemon at {pipe}/control: is mps-runner up on this node?")


def _refuse(server: Server, message: str, reason: str) -> int:
    """A model is at fault: the report says so, here and as the termination message."""
    # Characters may take several bytes, quotes a backslash: far below the limit of a termination message.
    server.error, server.reason = message[:1000], reason
    return _end(message, server.report().model_dump_json(by_alias=True, exclude_none=True))


def _give_up(server: Server, message: str) -> int:
    """Nothing that the model's owner could mend: plain words, which nobody takes for a report of the model."""
    server.warm = False
    return _end(message, message[:1000])


def _end(message: str, last_words: str) -> int:
    log.error("%s", message)
    path = Path(os.environ.get("GPULET_TERMINATION_LOG", "/dev/termination-log"))
    try:
        path.write_text(last_words)
    except OSError as error:
        log.error("no termination message: %s", error)
    return 1


def _lost(server: Server, reason: str) -> None:
    """Without its daemon a client has no GPU: it ends as a CUDA program would, in the middle of things."""
    _give_up(server, f"the share is gone: {reason}")
    if server.triton is not None:
        server.triton.kill()
    os._exit(EXIT_CODE)


def _ports() -> triton.Ports:
    """Those of the contract; several servers on one machine choose others."""
    given = os.environ.get("GPULET_TRITON_PORTS")
    return triton.Ports() if given is None else triton.Ports(*map(int, given.split(",")))
