"""Kind ``ModelProfile``: measured latency, throughput and memory of a model over shares and batches of a GPU product."""

from typing import Annotated

from pydantic import Field

from gpulet.api.base import Condition, KubeModel, Percent, Resource
from gpulet.api.inferencemodel import LocalRef, ModelSource


class LatencyMicroseconds(KubeModel):
    mean: Annotated[float, Field(gt=0)]
    p50: Annotated[float, Field(gt=0)]
    p99: Annotated[float, Field(gt=0)]


class Point(KubeModel):
    """One measurement: a closed loop of full batches against one replica."""

    product: Annotated[str, Field(min_length=1, max_length=64)]
    mig: Annotated[str, Field(max_length=32)] | None = None
    """MIG profile such as 3g.40gb; absent: the whole GPU."""
    compute_percent: Percent
    batch: Annotated[int, Field(ge=1, le=65536)]
    instances: Annotated[int, Field(ge=1, le=64)] = 1
    latency_microseconds: LatencyMicroseconds
    """Of one batch."""
    throughput_per_second: Annotated[float, Field(gt=0)]
    """Requests (not batches) per second of the replica."""
    memory_mebibytes: Annotated[int, Field(ge=1)]
    """Device memory of the replica, all instances."""


class Measure(KubeModel):
    """What to measure."""

    product: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    compute_percents: Annotated[list[Percent], Field(min_length=1, max_length=16)]
    batches: Annotated[list[Annotated[int, Field(ge=1, le=65536)]], Field(min_length=1, max_length=16)]
    seconds_per_point: Annotated[float, Field(gt=0, le=600)] = 5.0


class ModelProfileSpec(KubeModel):
    """Either the user's own points, or a model and what to measure of it."""

    model_ref: LocalRef | None = None
    model: ModelSource | None = None
    measure: Measure | None = None
    points: Annotated[list[Point], Field(max_length=1024)] = []


class ProfileKey(KubeModel):
    """What a measurement belongs to."""

    model_digest: str
    product: str
    runtime: str
    runtime_version: str


class ModelProfileStatus(KubeModel):
    observed_generation: int | None = None
    conditions: list[Condition] = []
    key: ProfileKey | None = None
    measured: int = 0
    wanted: int = 0
    points: Annotated[list[Point], Field(max_length=256)] = []


class ModelProfile(Resource[ModelProfileSpec, ModelProfileStatus]):
    """The measured (or given) surface of a model."""

    status: ModelProfileStatus = ModelProfileStatus()
