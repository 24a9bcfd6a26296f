"""Running the programs of pods outside of pods: their own Python environment, as subprocesses."""

import os
from pathlib import Path

ROOT = Path(__file__).parent.parent


def pods_program() -> str:
    """The ``gpulet`` command of the pods' environment; fails, and never skips, where it is missing."""
    program = Path(pods_python()).parent / "gpulet"
    assert program.exists(), f"{program} is missing: run `make env`"
    return str(program)


def pods_python() -> str:
    """The interpreter of the pods' environment; fails, and never skips, where it is missing."""
    python = Path(os.environ.get("GPULET_PODS_PYTHON", ROOT / ".venv-pods" / "bin" / "python"))
    assert python.exists(), f"{python} is missing: run `make env`"
    return str(python)
