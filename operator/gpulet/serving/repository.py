"""Triton's model repository for a ServeSpec, written below a temporary folder."""

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path

from gpulet.api.workload import ServedModel, ServeSpec
from gpulet.serving.configuration import config_pbtxt
from gpulet.serving.inspection import Signature, inspect

_BACKENDS = Path(__file__).parent / "backends"
_PROGRAMS = {"onnx": "onnx_model.py", "tvm": "tvm_model.py"}


@dataclass(frozen=True)
class Prepared:
    """A model as it stands in the repository."""

    model: ServedModel
    signature: Signature
    digest: str


def write_repository(spec: ServeSpec, *, models_root: Path, repository: Path, on_gpu: bool) -> list[Prepared]:
    """Checks and lays out every model; raises ModelFileError at the first that cannot be served."""
    return [_write_model(m, models_root / m.name / m.path, repository / m.name, on_gpu=on_gpu) for m in spec.models]


def _write_model(model: ServedModel, file: Path, folder: Path, *, on_gpu: bool) -> Prepared:
    signature = inspect(file, model=model.name, format_=model.format)
    version = folder / "1"
    version.mkdir(parents=True, exist_ok=True)
    (folder / "config.pbtxt").write_text(config_pbtxt(model, signature, on_gpu=on_gpu))
    # Links, not copies: models are large and /tmp may be memory.
    _link(version / file.name, file)
    if model.format == "tvm":
        _link(version / file.with_suffix(".json").name, file.with_suffix(".json"))
    if not on_gpu:
        shutil.copyfile(_BACKENDS / _PROGRAMS[model.format], version / "model.py")
    return Prepared(model, signature, f"sha256:{_sha256(file)}")


def _link(link: Path, target: Path) -> None:
    link.unlink(missing_ok=True)
    link.symlink_to(target)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
