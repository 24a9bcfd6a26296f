"""Triton's model repository for a ServeSpec, written below a temporary folder."""

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path

from gpulet.api.workload import ServedModel, ServeSpec
from gpulet.serving.configuration import backend_of, config_pbtxt, file_name
from gpulet.serving.inspection import check_present, inspect

_PROGRAMS = Path(__file__).parent / "backends"


@dataclass(frozen=True)
class Prepared:
    """A model as it stands in the repository."""

    model: ServedModel
    digest: str


def write_repository(spec: ServeSpec, *, models_root: Path, repository: Path, on_gpu: bool) -> list[Prepared]:
    """Checks and lays out every model; raises ModelFileError at the first that cannot be served."""
    return [_write_model(m, models_root / m.name / m.path, repository / m.name, on_gpu=on_gpu) for m in spec.models]


def _write_model(model: ServedModel, file: Path, folder: Path, *, on_gpu: bool) -> Prepared:
    check_present(file, model.name)
    in_python = backend_of(model, on_gpu=on_gpu) == "python"
    signature = inspect(file, model=model.name, format_=model.format) if in_python else None
    version = folder / "1"
    version.mkdir(parents=True)
    (folder / "config.pbtxt").write_text(config_pbtxt(model, signature, on_gpu=on_gpu))
    # A link, not a copy: models are large and /tmp may be memory.
    (version / file_name(model, on_gpu=on_gpu)).symlink_to(file)
    if in_python and model.format != "python":
        shutil.copyfile(_PROGRAMS / f"{model.format}_model.py", version / "model.py")
    return Prepared(model, f"sha256:{_sha256(file)}")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
