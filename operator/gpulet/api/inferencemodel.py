"""Kind ``InferenceModel``: a model, a latency objective, a rate."""

from typing import Annotated, Literal

from pydantic import Field

from gpulet.api.base import Condition, KubeModel, ObjectName, Percent, Resource

ModelFormat = Literal["onnx", "tensorrt", "torchscript", "tvm", "python"]
ModelUri = Annotated[
    str,
    Field(
        max_length=1024,
        pattern=r"^(oci://[^\s]+|pvc://[a-z0-9]([-a-z0-9]*[a-z0-9])?/[^\s]+|s3://[^\s]+|https://[^\s]+|configmap://[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[-._a-zA-Z0-9]+)$",
    ),
]


class LocalRef(KubeModel):
    """An object in the same namespace."""

    name: ObjectName


class ModelSource(KubeModel):
    """Where the model is and what it is."""

    uri: ModelUri
    """oci://image/path, pvc://claim/path, configmap://name/key, https://..., s3://bucket/key."""
    format: ModelFormat
    credentials_ref: LocalRef | None = None
    """A Secret in the same namespace: pull secret for oci, user and password or token for https and s3."""


class LatencyObjective(KubeModel):
    """What the user promises to callers: this percentile of the latency is at most so many milliseconds."""

    latency_milliseconds: Annotated[float, Field(gt=0, le=3_600_000)]
    percentile: Annotated[float, Field(ge=50, lt=100)] = 99.0


class Load(KubeModel):
    """The rate to plan for. Without ``requestsPerSecond`` the observed rate is followed, within min and max."""

    requests_per_second: Annotated[float, Field(gt=0, le=10_000_000)] | None = None
    min_requests_per_second: Annotated[float, Field(gt=0, le=10_000_000)] | None = None
    max_requests_per_second: Annotated[float, Field(gt=0, le=10_000_000)] | None = None


class Sharing(KubeModel):
    """With what and with whom a GPU may be shared."""

    mode: Literal["Auto", "MPS", "MIG", "Exclusive"] = "Auto"
    isolation: Literal["Any", "Namespace", "None"] = "Namespace"
    """With whose workloads a fault domain may be shared: anybody's, the same namespace's, nobody's."""


class TuningPolicy(KubeModel):
    """Tune this model with TVM in the room that is left, and roll the result out if it is better."""

    trials: Annotated[int, Field(ge=1, le=1_000_000)] = 2000


class Toleration(KubeModel):
    key: Annotated[str, Field(max_length=316)] | None = None
    operator: Literal["Exists", "Equal"] | None = None
    value: Annotated[str, Field(max_length=63)] | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None


class EnvironmentVariable(KubeModel):
    name: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
    value: Annotated[str, Field(max_length=4096)] = ""


class PodTemplate(KubeModel):
    """What a user may add to the serving pods. Everything else of the pod is Gpulet's."""

    labels: Annotated[dict[str, str], Field(max_length=32)] = {}
    annotations: Annotated[dict[str, str], Field(max_length=32)] = {}
    tolerations: Annotated[list[Toleration], Field(max_length=16)] = []
    service_account_name: ObjectName | None = None
    cpu: Annotated[str, Field(pattern=r"^([1-9][0-9]{0,4}|[1-9][0-9]{0,6}m)$", max_length=8)] | None = None
    """Host CPU of one pod, such as 500m. Ignored on simulated GPUs, where the share itself is the CPU limit."""
    memory: Annotated[str, Field(pattern=r"^[1-9][0-9]{0,8}(Mi|Gi)$", max_length=12)] | None = None
    """Host memory of one pod, such as 2Gi."""
    environment: Annotated[list[EnvironmentVariable], Field(max_length=64)] = []


class InferenceModelSpec(KubeModel):
    model: ModelSource
    slo: LatencyObjective
    load: Load = Load()
    sharing: Sharing = Sharing()
    products: Annotated[list[Annotated[str, Field(min_length=1, max_length=64)]], Field(max_length=16)] | None = None
    """GPU products it may run on, as NVML names them with dashes; absent: any."""
    priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] = 0
    """Who is left out when not all fit: the lower number first."""
    profile_ref: LocalRef | None = None
    tuning: TuningPolicy | None = None
    pod_template: PodTemplate = PodTemplate()


class ReplicaCounts(KubeModel):
    planned: int = 0
    ready: int = 0


class RateFigures(KubeModel):
    """Requests per second."""

    planned: float | None = None
    sustainable: float | None = None
    observed: float | None = None


class LatencyFigures(KubeModel):
    """Milliseconds."""

    predicted_milliseconds: float | None = None
    observed_mean_milliseconds: float | None = None
    observed_percentile_milliseconds: float | None = None


class GpuletLine(KubeModel):
    """One share that serves the model."""

    name: str
    node: str
    gpu: str
    mig: str | None = None
    compute_percent: Percent
    ready: bool = False


class InferenceModelStatus(KubeModel):
    observed_generation: int | None = None
    conditions: list[Condition] = []
    replicas: ReplicaCounts | None = None
    rate: RateFigures | None = None
    latency: LatencyFigures | None = None
    batch: int | None = None
    url: str | None = None
    model_digest: str | None = None
    """sha256 of what is served, computed in the pod where the file is read."""
    serving_format: ModelFormat | None = None
    tuning_job: str | None = None
    gpulets: list[GpuletLine] = []


class InferenceModel(Resource[InferenceModelSpec, InferenceModelStatus]):
    """A model, a latency objective and a rate: Gpulet sizes, places and serves it."""

    status: InferenceModelStatus = InferenceModelStatus()
