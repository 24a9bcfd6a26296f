"""What all kinds share: the base of every model, metadata, conditions."""

from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer
from pydantic.alias_generators import to_camel


class KubeModel(BaseModel):
    """A part of a Kubernetes object: camelCase outside, snake_case inside, newer fields ignored when reading."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="ignore",
        frozen=True,
        use_attribute_docstrings=True,
    )

    def to_dict(self) -> dict[str, Any]:
        """The object as Kubernetes wants it: aliases, JSON types, absent instead of null."""
        return self.model_dump(by_alias=True, mode="json", exclude_none=True)


Timestamp = Annotated[
    datetime, PlainSerializer(lambda t: t.strftime("%Y-%m-%dT%H:%M:%SZ"), return_type=str, when_used="json")
]
ConditionStatus = Literal["True", "False", "Unknown"]

# A binary memory quantity in whole MiB or GiB: shares are accounted in integer MiB (failure case D11).
MemoryQuantity = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,8}(Mi|Gi)$", max_length=12)]
ObjectName = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
Percent = Annotated[int, Field(ge=1, le=100)]
Text = Annotated[str, Field(max_length=1024)]
Digest = Annotated[str, Field(max_length=128)]
Product = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][-A-Za-z0-9._]*$")]
"""A GPU product as NVML names it, with dashes for blanks: NVIDIA-A100-SXM4-80GB."""
MigProfile = Annotated[
    str, Field(max_length=32, pattern=r"^[1-9][0-9]?g\.[1-9][0-9]{0,3}gb([-+](me|gfx)(\.[a-z]+)?)*$")
]
"""A MIG profile such as 3g.40gb or 1g.10gb+me."""
AS_SET: dict[str, Any] = {"x-kubernetes-list-type": "set"}
"""For ``json_schema_extra`` of a list of scalars in which nothing may be twice."""


def as_map(*keys: str) -> dict[str, Any]:
    """For ``json_schema_extra`` of a list of objects that ``keys`` identify: appliers own entries, not the list."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


class Condition(KubeModel):
    """One fact about an object, in the shape of ``metav1.Condition``."""

    type: Annotated[str, Field(max_length=64, pattern=r"^[A-Z][A-Za-z]*$")]
    status: ConditionStatus
    reason: Annotated[str, Field(max_length=64, pattern=r"^[A-Z][A-Za-z0-9]*$")]
    message: Annotated[str, Field(max_length=1024)] = ""
    observed_generation: Annotated[int, Field(ge=0)] | None = None
    last_transition_time: Timestamp


Conditions = Annotated[list[Condition], Field(max_length=16, json_schema_extra=as_map("type"))]


class OwnerReference(KubeModel):
    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool | None = None


class ObjectMeta(KubeModel):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    creation_timestamp: Timestamp | None = None
    deletion_timestamp: Timestamp | None = None
    owner_references: list[OwnerReference] = []


Spec = TypeVar("Spec", bound=KubeModel)
Status = TypeVar("Status", bound=KubeModel)


class Resource(KubeModel, Generic[Spec, Status]):
    """An object of one of our kinds, as read from the API server."""

    metadata: ObjectMeta
    spec: Spec
    status: Status

    @property
    def key(self) -> tuple[str, str]:
        """(namespace, name)."""
        return self.metadata.namespace, self.metadata.name


def memory_mib(quantity: str) -> int:
    """Whole MiB of a ``MemoryQuantity``; raises ValueError for anything that is not one."""
    number, unit = quantity[:-2], quantity[-2:]
    if unit == "Mi":
        return int(number)
    if unit == "Gi":
        return int(number) * 1024
    raise ValueError(f"memory {quantity!r}: write whole Mi or Gi, such as 10Gi")


def memory_quantity(mib: int) -> str:
    """The shortest ``MemoryQuantity`` of a whole number of MiB."""
    return f"{mib // 1024}Gi" if mib % 1024 == 0 else f"{mib}Mi"
