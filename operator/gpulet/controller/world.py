"""One consistent view of the cluster, taken from the caches at the start of a pass. Reading only."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from pydantic import ValidationError

from gpulet.api import names
from gpulet.api.base import Resource
from gpulet.api.gpulet import Gpulet
from gpulet.api.inferencemodel import InferenceModel
from gpulet.api.modelprofile import ModelProfile
from gpulet.api.tuningjob import TuningJob

Key = tuple[str, str]
"""(namespace, name); the namespace is empty for cluster-scoped objects."""
Raw = dict[str, Any]
R = TypeVar("R", bound=Resource[Any, Any])


@dataclass(frozen=True)
class Invalid:
    """An object that the API server let through but that this version cannot read: it gets a condition of its own."""

    kind: str
    raw: Raw
    message: str


@dataclass(frozen=True)
class World:
    """Typed objects of our kinds, plain dicts of Kubernetes' own."""

    models: Mapping[Key, InferenceModel]
    jobs: Mapping[Key, TuningJob]
    profiles: Mapping[Key, ModelProfile]
    gpulets: Mapping[Key, Gpulet]
    claims: Mapping[Key, Raw] = field(default_factory=dict)
    pods: Mapping[Key, Raw] = field(default_factory=dict)
    services: Mapping[Key, Raw] = field(default_factory=dict)
    client_jobs: Mapping[Key, Raw] = field(default_factory=dict)
    network_policies: Mapping[Key, Raw] = field(default_factory=dict)
    nodes: Mapping[Key, Raw] = field(default_factory=dict)
    slices: Mapping[Key, Raw] = field(default_factory=dict)
    volume_claims: Mapping[Key, Raw] = field(default_factory=dict)
    volumes: Mapping[Key, Raw] = field(default_factory=dict)
    invalid: tuple[Invalid, ...] = ()

    @cached_property
    def _profiles_by_model(self) -> Mapping[Key, list[ModelProfile]]:
        made: dict[Key, list[ModelProfile]] = defaultdict(list)
        for (namespace, _), profile in sorted(self.profiles.items()):
            labels = profile.metadata.labels
            if labels.get(names.LABEL_MANAGED_BY) == names.MANAGED_BY and names.LABEL_MODEL in labels:
                made[namespace, labels[names.LABEL_MODEL]].append(profile)
        return made

    def profiles_made_for(self, namespace: str, model: str) -> list[ModelProfile]:
        """Those that Gpulet made for this model and its artifacts, by name."""
        return self._profiles_by_model.get((namespace, model), [])

    def gpulets_of(self, label: str, namespace: str, name: str) -> list[Gpulet]:
        """Gpulets of our plan that carry this owner's label, in order of name."""
        found = (
            g
            for (ns, _), g in self.gpulets.items()
            if ns == namespace and g.metadata.labels.get(label) == name and is_planned(g)
        )
        return sorted(found, key=lambda g: g.metadata.name)


def is_planned(gpulet: Gpulet) -> bool:
    """Whether the planner owns it. Manual ones are never changed and count as taken."""
    return gpulet.metadata.labels.get(names.LABEL_ORIGIN) == names.ORIGIN_PLAN


def deleting(raw: Mapping[str, Any]) -> bool:
    return "deletionTimestamp" in raw["metadata"]


def owned_by(raw: Mapping[str, Any], uid: str) -> bool:
    return any(reference["uid"] == uid for reference in raw["metadata"].get("ownerReferences") or ())


def key_of(raw: Mapping[str, Any]) -> Key:
    return raw["metadata"].get("namespace", ""), raw["metadata"]["name"]


def parse_one(kind: type[R], raw: Raw) -> R | Invalid:
    """The typed object, or what is wrong with it: that stops nobody else."""
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(str(p) for p in first["loc"])
        return Invalid(kind.__name__, raw, f"{path}: {first['msg']}")
