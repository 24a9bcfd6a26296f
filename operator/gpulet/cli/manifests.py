"""Objects in files, as `kubectl get -o yaml` or a user writes them; faults are named by file, object and field."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from gpulet.api import names
from gpulet.controller.inventory import gpus
from gpulet.controller.read import read_world
from gpulet.controller.world import Key, Raw, World, key_of

_OURS = ("InferenceModel", "TuningJob", "ModelProfile", "Gpulet")
_GROUPS = dict.fromkeys(_OURS, names.GROUP) | {"ResourceSlice": "resource.k8s.io", "Node": ""}
"""Kinds that are read, and the API group they have to be of: others have an InferenceModel too."""
_KINDS = (*_GROUPS, "ResourceClaim", "Pod", "Service", "Job", "PersistentVolumeClaim", "PersistentVolume")


class InputError(ValueError):
    """A manifest or an argument cannot be used; the message names it and the remedy."""


@dataclass(frozen=True)
class Manifests:
    """The objects of some files that a plan is made from."""

    objects: Mapping[tuple[str, Key], Raw] = field(default_factory=dict)
    files: Mapping[tuple[str, Key], Path] = field(default_factory=dict)
    """Where each of them is written."""

    def of(self, kind: str) -> dict[Key, Raw]:
        return {key: raw for (k, key), raw in self.objects.items() if k == kind}

    def world(self) -> World:
        """The world that these objects alone describe. Raises InputError for one that cannot be read."""
        world = read_world({kind: self.of(kind) for kind in _KINDS})
        for invalid in world.invalid:
            raise InputError(f"{self._where(invalid.kind, key_of(invalid.raw))}: {invalid.message}")
        self._check_slices()
        return world

    def _check_slices(self) -> None:
        """The API server lets no such slice through; a file may hold anything."""
        for key, raw in self.of("ResourceSlice").items():
            where = self._where("ResourceSlice", key)
            try:
                if raw["spec"]["driver"] == names.DRIVER:
                    pool = raw["spec"]["pool"] | {"resourceSliceCount": 1}
                    gpus([raw | {"spec": raw["spec"] | {"pool": pool}}])
            except KeyError as error:
                raise InputError(f"{where}: spec: no {error}: write the slice as the agent publishes it") from error
            except (TypeError, ValueError, AttributeError, StopIteration) as error:
                raise InputError(f"{where}: spec: {error}: write the slice as the agent publishes it") from error

    def _where(self, kind: str, key: Key) -> str:
        return f"{self.files[kind, key]}: {kind} {'/'.join(part for part in key if part)}"


def manifests(paths: Iterable[Path]) -> Manifests:
    """InferenceModels, ModelProfiles, TuningJobs, Gpulets, ResourceSlices and Nodes of YAML and JSON files.

    Folders with all below them, Lists with their items; other kinds are passed over. Raises InputError.
    """
    objects: dict[tuple[str, Key], Raw] = {}
    files: dict[tuple[str, Key], Path] = {}
    for path in paths:
        for file in _files(path):
            for raw in _objects(file):
                name = (raw["kind"], key_of(raw))
                if objects.get(name, raw) != raw:
                    where = f"{file}: {name[0]} {'/'.join(part for part in name[1] if part)}"
                    raise InputError(f"{where}: another one of this name is in {files[name]}: keep one")
                objects[name], files[name] = raw, file
    return Manifests(objects, files)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(file for ending in ("yaml", "yml", "json") for file in path.rglob(f"*.{ending}"))


def _objects(file: Path) -> Iterator[Raw]:
    try:
        documents = list(yaml.safe_load_all(file.read_text()))
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{file}: cannot be read: {reason}: give YAML or JSON manifests") from error
    for document in documents:
        is_list = isinstance(document, dict) and str(document.get("kind", "")).endswith("List")
        for raw in (document.get("items") or ()) if is_list else (document,):
            if isinstance(raw, dict) and _is_read(raw):
                yield _named(file, raw)


def _is_read(raw: Mapping[str, Any]) -> bool:
    group = _GROUPS.get(str(raw.get("kind")))
    version = str(raw.get("apiVersion", ""))
    return group is not None and (version.rpartition("/")[0] == group)


def _named(file: Path, raw: Raw) -> Raw:
    metadata = raw.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str) or not metadata["name"]:
        raise InputError(f"{file}: {raw['kind']} without metadata.name: name it")
    if raw["kind"] in _OURS and not metadata.get("namespace"):
        return raw | {"metadata": metadata | {"namespace": "default"}}
    return raw
