"""Kind ``Gpulet``: one share of one device, and what runs in it. The plan made visible; its spec never changes."""

from typing import Annotated, Literal

from pydantic import Field

from gpulet.api.base import Condition, KubeModel, MemoryQuantity, ObjectName, Percent, Resource


class MigSlot(KubeModel):
    profile: Annotated[str, Field(min_length=1, max_length=32)]
    start: Annotated[int, Field(ge=0, le=63)]


class DeviceRef(KubeModel):
    node: Annotated[str, Field(min_length=1, max_length=253)]
    gpu: Annotated[str, Field(min_length=1, max_length=64)]
    """UUID of the physical GPU."""
    mig: MigSlot | None = None


class ServedModelRef(KubeModel):
    name: ObjectName
    batch: Annotated[int, Field(ge=1, le=65536)]
    instances: Annotated[int, Field(ge=1, le=64)] = 1
    queue_delay_microseconds: Annotated[int, Field(ge=0, le=60_000_000)] = 0
    artifact: Annotated[str, Field(max_length=1024)] | None = None
    """URI of an adopted tuned artifact that is served instead of the model's own file."""


class TuningRef(KubeModel):
    job: ObjectName
    role: Literal["server", "merge"]
    ordinal: Annotated[int, Field(ge=0, le=1023)] = 0


class ProfilingRef(KubeModel):
    profile: ObjectName
    batches: Annotated[list[Annotated[int, Field(ge=1, le=65536)]], Field(min_length=1, max_length=16)]


class GpuletSpec(KubeModel):
    device: DeviceRef
    compute_percent: Percent
    memory: MemoryQuantity
    clients: Annotated[int, Field(ge=1, le=64)]
    """CUDA processes it will open."""
    models: Annotated[list[ServedModelRef], Field(min_length=1, max_length=16)] | None = None
    tuning: TuningRef | None = None
    profiling: ProfilingRef | None = None


class GpuletStatus(KubeModel):
    observed_generation: int | None = None
    conditions: list[Condition] = []
    pod: str | None = None
    planned_rate: float | None = None
    predicted_latency_milliseconds: float | None = None
    observed_latency_milliseconds: float | None = None


class Gpulet(Resource[GpuletSpec, GpuletStatus]):
    """One share of one device: compute percent, memory, clients, and what runs in it."""

    status: GpuletStatus = GpuletStatus()
