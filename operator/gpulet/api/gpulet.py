"""Kind ``Gpulet``: one share of one device, and what runs in it. The plan made visible; its spec never changes."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from gpulet.api.base import (
    AS_SET,
    Conditions,
    KubeModel,
    MemoryQuantity,
    MigProfile,
    ObjectName,
    Percent,
    Resource,
    as_map,
)
from gpulet.api.cel import exactly_one_of, immutable, rule, rules


class MigSlot(KubeModel):
    """A MIG placement: a profile at a start slice."""

    profile: MigProfile
    """Such as 3g.40gb."""
    start: Annotated[int, Field(ge=0, le=63)]
    """First memory slice."""


class DeviceRef(KubeModel):
    """What the share is cut from: a whole GPU, or a MIG placement of it."""

    node: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
    """Name of the node."""
    gpu: Annotated[str, Field(max_length=64, pattern=r"^GPU-[-A-Za-z0-9]+$")]
    """UUID of the physical GPU."""
    mig: MigSlot | None = None
    """Absent: the whole GPU."""


class ServedModelRef(KubeModel):
    """A model that is served in the share."""

    name: ObjectName
    """Of the InferenceModel, in the same namespace."""
    batch: Annotated[int, Field(ge=1, le=65536)]
    """Requests that are computed together at most."""
    instances: Annotated[int, Field(ge=1, le=64)] = 1
    """Copies of the model in the server."""
    queue_delay_microseconds: Annotated[int, Field(ge=0, le=60_000_000)] = 0
    """How long the server may wait for a batch to fill."""
    artifact: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """URI of an adopted tuned artifact that is served instead of the model's own file."""


class TuningRef(KubeModel):
    """A part of a TuningJob that runs in the share."""

    job: ObjectName
    """Of the TuningJob, in the same namespace."""
    role: Literal["server", "merge"]
    """server: candidates are measured here; merge: the result is built, checked and measured here."""
    ordinal: Annotated[int, Field(ge=0, le=1023)] = 0


class ProfilingRef(KubeModel):
    """A measurement that runs in the share."""

    profile: ObjectName
    """Of the ModelProfile, in the same namespace."""
    batches: Annotated[
        list[Annotated[int, Field(ge=1, le=65536)]], Field(min_length=1, max_length=16, json_schema_extra=AS_SET)
    ]


class GpuletSpec(KubeModel):
    """A share, and exactly one of models, tuning and profiling. It never changes: another share is another Gpulet."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            exactly_one_of("models", "tuning", "profiling"),
            rule(
                "!has(self.models) || self.models.size() == 1",
                "models: a Gpulet serves one model for now: make one Gpulet for each",
                field="models",
            ),
            immutable("Gpulet"),
        )
    )

    device: DeviceRef
    compute_percent: Percent
    """Of the device's compute."""
    memory: MemoryQuantity
    """Device memory, such as 10Gi or 512Mi."""
    clients: Annotated[int, Field(ge=1, le=64)]
    """CUDA processes it will open."""
    models: (
        Annotated[list[ServedModelRef], Field(min_length=1, max_length=16, json_schema_extra=as_map("name"))] | None
    ) = None
    tuning: TuningRef | None = None
    profiling: ProfilingRef | None = None


class GpuletStatus(KubeModel):
    """What was observed of the share."""

    observed_generation: int | None = None
    conditions: Conditions = []
    """Ready, Enforced; Reconciling and Stalled as kstatus reads them."""
    device: Annotated[str, Field(max_length=64)] | None = None
    """Short form for people: the UUID's first block, then the MIG profile and its start: GPU-8b1fbde3/3g.40gb@4."""
    pod: Annotated[str, Field(max_length=253)] | None = None
    planned_rate: float | None = None
    """Requests per second that the plan gives it."""
    predicted_latency_milliseconds: float | None = None
    """At the objective's percentile."""
    observed_latency_milliseconds: float | None = None
    """At the objective's percentile."""


class Gpulet(Resource[GpuletSpec, GpuletStatus]):
    """One share of one device: compute percent, memory, clients, and what runs in it."""

    status: GpuletStatus = GpuletStatus()
