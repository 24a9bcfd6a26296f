"""Kind ``ModelProfile``: measured latency, throughput and memory of a model over shares and batches."""

from typing import Annotated

from pydantic import ConfigDict, Field

from gpulet.api.base import AS_SET, Conditions, Digest, KubeModel, MigProfile, Percent, Product, Resource, Text
from gpulet.api.cel import rule, rules, unchanging
from gpulet.api.inferencemodel import LocalRef, ModelFormat, ModelSource


class LatencyMicroseconds(KubeModel):
    """Microseconds."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule("self.p50 <= self.p99", "p50 may not be above p99: check the figures", field="p50")
        )
    )

    mean: Annotated[float, Field(gt=0)]
    p50: Annotated[float, Field(gt=0)]
    p99: Annotated[float, Field(gt=0)]


class Point(KubeModel):
    """One measurement: a closed loop of full batches against one replica."""

    product: Product
    mig: MigProfile | None = None
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


class GpuUse(KubeModel):
    """A replica as its neighbours on a GPU feel it."""

    compute_percent: Percent
    l2_cache: Annotated[float, Field(ge=0, le=1)]
    """L2 cache that the model uses at this batch in a run alone on the whole GPU, 0 to 1."""
    memory_bandwidth: Annotated[float, Field(ge=0, le=1)]
    """Memory bandwidth likewise."""
    active: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Part of the latency in which kernels run."""


class CoRun(KubeModel):
    """One measurement of a replica beside others on one whole GPU."""

    product: Product
    model: GpuUse
    """This model."""
    neighbours: Annotated[list[GpuUse], Field(min_length=1, max_length=8)]
    slowdown: Annotated[float, Field(gt=0, le=100)]
    """Its mean latency there, divided by that alone at the same share and batch."""


class Measure(KubeModel):
    """What to measure: every percent with every batch."""

    product: Product | None = None
    """Absent: the first that has room; all points are of that one."""
    compute_percents: Annotated[list[Percent], Field(min_length=1, max_length=16, json_schema_extra=AS_SET)]
    batches: Annotated[
        list[Annotated[int, Field(ge=1, le=65536)]], Field(min_length=1, max_length=16, json_schema_extra=AS_SET)
    ]
    seconds_per_point: Annotated[float, Field(gt=0, le=600)] = 5.0
    """How long one share and batch are loaded."""


class ModelProfileSpec(KubeModel):
    """Either the user's own points, or a model and what to measure of it. Only points may be changed."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "has(self.points) != has(self.measure)",
                "give either points (your own measurements) or measure (what Gpulet shall measure)",
            ),
            rule(
                "(has(self.modelRef) ? 1 : 0) + (has(self.model) ? 1 : 0) == (has(self.measure) ? 1 : 0)",
                "with measure give exactly one of modelRef and model, with points neither",
            ),
            *unchanging("ModelProfile", "modelRef", "model", "measure"),
        )
    )

    model_ref: LocalRef | None = None
    """An InferenceModel in the same namespace."""
    model: ModelSource | None = None
    measure: Measure | None = None
    # Empty is not absent in what a user writes; in Python an absent list reads as an empty one.
    points: Annotated[list[Point], Field(max_length=1024, json_schema_extra={"minItems": 1})] = []
    co_runs: Annotated[list[CoRun], Field(max_length=256)] = []
    """It beside others: with ten of a product the planner fits how much neighbours cost, instead of a policy margin."""


class ProfileKey(KubeModel):
    """What a measurement belongs to."""

    model_digest: Digest
    product: Annotated[str, Field(max_length=64)]
    runtime: Annotated[str, Field(max_length=64)]
    runtime_version: Annotated[str, Field(max_length=64)]


class MeasuredSource(KubeModel):
    """The file that was measured, as the model named it then."""

    uri: Text
    format: ModelFormat


class ModelProfileStatus(KubeModel):
    """What has been measured so far."""

    observed_generation: int | None = None
    conditions: Conditions = []
    """Measured and from it Ready; Reconciling and Stalled for kstatus."""
    key: ProfileKey | None = None
    source: MeasuredSource | None = None
    """What the points are of: when the model of spec.modelRef gets another file, they are dropped and measured anew."""
    measured: int | None = None
    """Points that have been measured; absent where the points are given."""
    wanted: int | None = None
    """Points that were asked for; absent likewise."""
    points: Annotated[list[Point], Field(max_length=256)] = []


class ModelProfile(Resource[ModelProfileSpec, ModelProfileStatus]):
    """The measured (or given) surface of a model."""

    status: ModelProfileStatus = ModelProfileStatus()
