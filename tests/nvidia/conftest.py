"""MPS control programs under test: the simulated one, and NVIDIA's own where the package registry serves it."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from gpulet.nvidia.mps import MpsControl, control_program

_CACHE = Path(tempfile.gettempdir()) / "gpulet-test-cache" / "nvidia-cuda-mps"
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


def _non_free_source() -> str | None:
    """The machine's own Debian mirror with the component non-free; None where it has none."""
    wanted = "$(REPO_URI)|$(RELEASE)|$(COMPONENT)"
    listed = ["apt-get", "indextargets", "--format", wanted, "Created-By: Packages", "Component: main"]
    targets = subprocess.run(listed, capture_output=True, text=True, timeout=20, check=False).stdout.split()
    for uri, release, _ in (target.split("|") for target in targets):
        if "-" not in release and "debian" in uri:
            return f"Types: deb\nURIs: {uri}\nSuites: {release}\nComponents: non-free\nSigned-By: {_KEYRING}\n"
    return None


def _real_program() -> Path | None:
    """NVIDIA's control program (proprietary, so fetched at test time and never stored with the code)."""
    binary = _CACHE / "usr/bin/nvidia-cuda-mps-control"
    if not binary.exists() and shutil.which("apt-get") and (source := _non_free_source()):
        work = _CACHE.with_name("apt")
        (work / "lists/partial").mkdir(parents=True, exist_ok=True)
        (work / "non-free.sources").write_text(source)
        places = {"Dir::Etc::sourcelist": work / "non-free.sources", "Dir::Etc::sourceparts": "/dev/null"}
        places |= {"Dir::State::lists": work / "lists", "Dir::Cache": work / "cache"}
        apt = ["apt-get", "-qq", *(x for k, v in places.items() for x in ("-o", f"{k}={v}"))]
        for arguments in (["update"], ["download", "nvidia-cuda-mps"]):
            if subprocess.run([*apt, *arguments], cwd=work, capture_output=True, timeout=50, check=False).returncode:
                return None
        for package in work.glob("nvidia-cuda-mps_*.deb"):
            subprocess.run(["dpkg-deb", "-x", str(package), str(_CACHE)], check=True, timeout=50)
    return binary if binary.exists() else None


@contextmanager
def _daemon(program: list[str], pipe: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A control daemon in the foreground on ``pipe``, ended at the end."""
    variables = {"CUDA_MPS_PIPE_DIRECTORY": str(pipe), "CUDA_MPS_LOG_DIRECTORY": str(pipe), **environment}
    process = subprocess.Popen(
        [*program, "-f"], env=os.environ | variables, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 10
        while not MpsControl(pipe, program).alive():
            assert process.poll() is None, f"daemon ended with {process.returncode}"
            assert time.monotonic() < deadline, "daemon does not answer"
            time.sleep(0.02)
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def daemon() -> Callable[..., AbstractContextManager[subprocess.Popen[bytes]]]:
    """``with daemon(program, pipe, **environment) as process``: a control daemon in the foreground."""
    return _daemon


@pytest.fixture
def pipe() -> Iterator[Path]:
    """A short path: socket addresses hold 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="mps") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def real_program() -> list[str]:
    path = _real_program()
    if path is None:
        pytest.skip("Debian's package nvidia-cuda-mps (non-free) cannot be fetched here")
    return [str(path)]


@pytest.fixture(params=["simulated", "real"])
def program(request: pytest.FixtureRequest) -> list[str]:
    return control_program("simulated") if request.param == "simulated" else request.getfixturevalue("real_program")


@pytest.fixture
def control(program: list[str], pipe: Path) -> Iterator[MpsControl]:
    """A fresh daemon of either program."""
    with _daemon(program, pipe):
        yield MpsControl(pipe, program)


@pytest.fixture
def simulated(pipe: Path) -> Iterator[MpsControl]:
    program = control_program("simulated")
    with _daemon(program, pipe):
        yield MpsControl(pipe, program)
