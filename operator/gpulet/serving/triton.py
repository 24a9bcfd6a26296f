"""Starting the real tritonserver: NVIDIA's image has it on the PATH, the CPU image inside the nvidia-pytriton wheel."""

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from gpulet.api.workload import GRPC_PORT, HTTP_PORT, METRICS_PORT, ServeSpec

# How far off its rank a reported quantile may be.
_QUANTILE_ERRORS = ((0.99, 0.001), (0.9, 0.005), (0.0, 0.02))


@dataclass(frozen=True)
class Ports:
    http: int = HTTP_PORT
    grpc: int = GRPC_PORT
    metrics: int = METRICS_PORT


def start(spec: ServeSpec, *, repository: Path, work: Path, ports: Ports) -> "subprocess.Popen[bytes]":
    """A tritonserver over ``repository`` in a process group of its own."""
    carrier = importlib.util.find_spec("pytriton")
    environment = dict(os.environ)
    if carrier is not None and carrier.origin is not None:
        program, options = _from_wheel(Path(carrier.origin).parent / "tritonserver", work, environment)
    else:
        program, options = shutil.which("tritonserver") or "tritonserver", []
    command = [program, *options, *flags(spec, repository=repository, ports=ports)]
    return subprocess.Popen(command, env=environment, start_new_session=True)


def flags(spec: ServeSpec, *, repository: Path, ports: Ports) -> list[str]:
    """What is the same everywhere. Triton's default metrics are counters, so summaries are asked for."""
    quantiles = ",".join(f"{p / 100:g}:{_error(p / 100)}" for p in spec.percentiles)
    return [
        f"--model-repository={repository}",
        "--model-control-mode=explicit",
        *(f"--load-model={m.name}" for m in spec.models),
        f"--http-port={ports.http}",
        f"--grpc-port={ports.grpc}",
        f"--metrics-port={ports.metrics}",
        "--http-thread-count=2",
        "--exit-timeout-secs=20",
        "--metrics-config=summary_latencies=true",
        f"--metrics-config=summary_quantiles={quantiles}",
        f"--backend-config=python,shm-region-prefix-name=gpulet-{os.getpid()}",
    ]


def _error(quantile: float) -> float:
    return next(error for bound, error in _QUANTILE_ERRORS if quantile >= bound)


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
    environment["PYTHONPATH"] = str(site_packages)
    # The embedded interpreter takes its home from the python3 it finds on the PATH.
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment.get('PATH', '')}"
    environment.setdefault("OMP_NUM_THREADS", "1")
    return str(server / "bin" / "tritonserver"), [
        f"--backend-directory={work / 'backends'}",
        f"--cache-directory={server / 'caches'}",
    ]


def version() -> str:
    """Of the server, as far as it is known without starting it."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as version_of

    try:
        return f"nvidia-pytriton {version_of('nvidia-pytriton')}"
    except PackageNotFoundError:
        return os.environ.get("NVIDIA_TRITON_SERVER_VERSION", "unknown")
