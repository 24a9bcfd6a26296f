"""The real tritonserver: NVIDIA's image has it on the PATH, the CPU image inside the nvidia-pytriton wheel."""

import ctypes
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.request
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from gpulet.api.workload import GRPC_PORT, HTTP_PORT, METRICS_PORT, ServeSpec
from gpulet.v2.client import V2Client

# How far off its rank a reported quantile may be.
_QUANTILE_ERRORS = ((0.99, 0.001), (0.9, 0.005), (0.0, 0.02))
# What a caller of models has no business with: loading a model means running its code.
_RESTRICTED = "model-repository,shared-memory,trace,logging"
_KEY_HEADER = "gpulet-key"
# Triton waits so long for idle connections, too, which callers like to keep: what is in flight is waited for before.
_EXIT_TIMEOUT_S = 2
_REQUESTS = re.compile(r"^nv_inference_(request_success|request_failure|pending_request_count)\{[^}]*\} (\S+)", re.M)
_SHM = Path("/dev/shm")
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Ports:
    http: int = HTTP_PORT
    grpc: int = GRPC_PORT
    metrics: int = METRICS_PORT


@dataclass(frozen=True)
class Traffic:
    """What Triton's metrics say of all its models."""

    finished: int
    pending: int


@dataclass
class Triton:
    """One tritonserver without models; they are loaded one by one with ``key``, so that each error has its words."""

    process: "subprocess.Popen[bytes]"
    ports: Ports
    shm_prefix: str
    key: dict[str, str] = field(repr=False)

    def traffic(self) -> Traffic:
        """Raises OSError when the server does not answer."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports.metrics}/metrics", timeout=5) as answer:
            return read_traffic(answer.read().decode())

    def unload(self, models: Iterable[str], *, patience_s: float) -> None:
        """Returns when what is in flight has been answered, or after ``patience_s``. Raises V2Error."""
        deadline = time.monotonic() + patience_s
        with V2Client(self.ports.http) as client:
            for model in models:
                client.unload(model, self.key)
            while not client.unloaded(self.key) and time.monotonic() < deadline:
                time.sleep(0.2)

    def end(self) -> None:
        """Ends the server, by force if it takes too long."""
        if self.process.poll() is None:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(_EXIT_TIMEOUT_S + 3)
        self.kill()

    def kill(self) -> None:
        """Ends the server and the model processes it started, at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        _remove_shm(self.shm_prefix)


def start(spec: ServeSpec, *, work: Path, ports: Ports, on_gpu: bool) -> Triton:
    """A tritonserver over ``work``/repository in a process group of its own, which dies with this process."""
    carrier = importlib.util.find_spec("pytriton")
    environment = dict(os.environ)
    if carrier is not None and carrier.origin is not None:
        program, options = _from_wheel(Path(carrier.origin).parent / "tritonserver", work, environment)
    else:
        program, options = shutil.which("tritonserver") or "tritonserver", []
    key = secrets.token_hex(16)
    options += flags(spec, repository=work / "repository", ports=ports, key=key, on_gpu=on_gpu)
    # The same after a restart of the container, so that what a killed predecessor left can be removed.
    # /dev/shm is shared by all pods of a device, and in each of them this process has the PID 1.
    shm_prefix = f"gpulet-{hashlib.sha256(f'{socket.gethostname()} {work}'.encode()).hexdigest()[:12]}-"
    _remove_shm(shm_prefix)
    options.append(f"--backend-config=python,shm-region-prefix-name={shm_prefix}")
    process = subprocess.Popen([program, *options], env=environment, start_new_session=True, preexec_fn=_die_with_us)
    return Triton(process, ports, shm_prefix, {_KEY_HEADER: key})


def flags(spec: ServeSpec, *, repository: Path, ports: Ports, key: str, on_gpu: bool) -> list[str]:
    """What is the same everywhere. Triton's default metrics are counters, so summaries are asked for."""
    quantiles = ",".join(f"{p / 100:g}:{_error(p / 100)}" for p in sorted(set(spec.percentiles)))
    # Our configurations are complete but for these; to complete one, Triton would start the model once more.
    complete = not on_gpu and all(m.format != "python" for m in spec.models)
    return [
        *(["--disable-auto-complete-config"] if complete else []),
        f"--model-repository={repository}",
        "--model-control-mode=explicit",
        f"--http-port={ports.http}",
        f"--grpc-port={ports.grpc}",
        f"--metrics-port={ports.metrics}",
        "--http-thread-count=2",
        f"--exit-timeout-secs={_EXIT_TIMEOUT_S}",
        f"--allow-gpu-metrics={str(on_gpu).lower()}",
        "--metrics-config=summary_latencies=true",
        f"--metrics-config=summary_quantiles={quantiles}",
        f"--http-restricted-api={_RESTRICTED}:{_KEY_HEADER}={key}",
        f"--grpc-restricted-protocol={_RESTRICTED}:{_KEY_HEADER}={key}",
    ]


def read_traffic(metrics: str) -> Traffic:
    """Sums Triton's request counters over its models."""
    finished = pending = 0
    for name, value in _REQUESTS.findall(metrics):
        if name == "pending_request_count":
            pending += int(float(value))
        else:
            finished += int(float(value))
    return Traffic(finished, pending)


def version() -> str:
    """Of the server, as far as it is known without starting it."""
    try:
        return f"nvidia-pytriton {importlib.metadata.version('nvidia-pytriton')}"
    except importlib.metadata.PackageNotFoundError:
        return os.environ.get("NVIDIA_TRITON_SERVER_VERSION", "unknown")


def _error(quantile: float) -> float:
    return next(error for bound, error in _QUANTILE_ERRORS if quantile >= bound)


def _remove_shm(prefix: str) -> None:
    for left in _SHM.glob(f"{prefix}*"):
        with suppress(OSError):
            left.unlink()


def _die_with_us() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _from_wheel(server: Path, work: Path, environment: dict[str, str]) -> tuple[str, list[str]]:
    """Three duties: one folder with backend and stub, the libraries of interpreter and wheel, our site-packages."""
    backend = work / "backends" / "python"
    shutil.copytree(server / "backends" / "python", backend, ignore=shutil.ignore_patterns("__pycache__"))
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    shutil.copy(server / "python_backend_stubs" / version / "triton_python_backend_stub", backend)
    site_packages = server.parent.parent
    # The stub must load libpython of the very build that this environment was made from.
    libraries = [sysconfig.get_config_var("LIBDIR"), str(site_packages / "nvidia_pytriton.libs")]
    environment["LD_LIBRARY_PATH"] = ":".join(libraries)
    # The model programs import ours, which in an editable installation is elsewhere.
    environment["PYTHONPATH"] = f"{Path(__file__).parents[2]}:{site_packages}"
    # The embedded interpreter takes its home from the python3 it finds on the PATH.
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment.get('PATH', '')}"
    environment.setdefault("OMP_NUM_THREADS", "1")
    return str(server / "bin" / "tritonserver"), [
        f"--backend-directory={work / 'backends'}",
        f"--cache-directory={server / 'caches'}",
    ]
