"""What every TVM process of a job sets before its first import of MetaSchedule."""

import hashlib
import os
import sys
import types
from pathlib import Path

from gpulet.api.workload import MODEL_ROOT, WORK_ROOT, ServedModel

_FOREIGN = ("cuda", "rocm", "hexagon", "arm_cpu", "riscv_cpu", "metal")


def prepare() -> None:
    """One thread, temporary files under /tmp, and no tensor intrinsics of other back ends.

    MetaSchedule imports the intrinsics of all back ends in every process, 15 to 30 s of CPU; empty modules in their
    place reduce that to a tenth of a second.
    """
    os.environ.setdefault("TVM_NUM_THREADS", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name in _FOREIGN:
        module = f"tvm.s_tir.tensor_intrin.{name}"
        sys.modules.setdefault(module, types.ModuleType(module))


def model_path(model: ServedModel) -> Path:
    """Of the model's file in this container."""
    return Path(os.environ.get("GPULET_MODEL_ROOT", MODEL_ROOT)) / model.name / model.path


def digest_of(path: Path) -> str:
    """sha256:... of a file."""
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def work_folder() -> Path:
    """The job's output folder in this container."""
    return Path(os.environ.get("GPULET_WORK_ROOT", WORK_ROOT))
