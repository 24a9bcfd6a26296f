"""Triton's model repository for a ServeSpec, written below a temporary folder."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from gpulet.api.workload import ServedModel, ServeSpec
from gpulet.serving.configuration import backend_of, config_pbtxt, file_name
from gpulet.serving.inspection import check_present, inspect
from gpulet.serving.source import SourceFile, digest_of

_PROGRAMS = Path(__file__).parent / "backends"


@dataclass(frozen=True)
class Prepared:
    """A model as it stands in the repository."""

    model: ServedModel
    digest: str
    source: SourceFile
    """The model's own file, which may be another than the one that is served."""


def write_repository(
    spec: ServeSpec, *, models_root: Path, sources_root: Path, repository: Path, on_gpu: bool
) -> list[Prepared]:
    """Checks and lays out every model; raises ModelFileError at the first that cannot be served."""
    prepared = []
    for model in spec.models:
        file = models_root / model.name / model.path
        source = SourceFile(sources_root / model.name / model.source if model.source is not None else file)
        prepared.append(_write_model(model, file, repository / model.name, source=source, on_gpu=on_gpu))
    return prepared


def _write_model(model: ServedModel, file: Path, folder: Path, *, source: SourceFile, on_gpu: bool) -> Prepared:
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
    return Prepared(model, digest_of(file), source)
