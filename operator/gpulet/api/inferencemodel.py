"""Kind ``InferenceModel``: a model, a latency objective, a rate."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from gpulet.api.base import (
    AS_SET,
    Conditions,
    Digest,
    KubeModel,
    ObjectName,
    Percent,
    Product,
    Resource,
    Text,
    as_map,
)
from gpulet.api.cel import ANNOTATIONS, LABELS, RESERVED_ENVIRONMENT, rule, rules

ModelFormat = Literal["onnx", "tensorrt", "torchscript", "tvm", "python"]
ModelUri = Annotated[
    str,
    Field(
        max_length=1024,
        json_schema_extra=rules(
            rule("!self.matches('(^|/)[.][.](/|$)')", "a path with '..' leaves its volume: write it out"),
            rule(
                "!self.matches('^(s3|https)://[^/]*@')",
                "user and password belong into a Secret: name it in credentialsRef",
            ),
        ),
        pattern=r"^(oci://[^\s]+|pvc://[a-z0-9]([-a-z0-9]*[a-z0-9])?/[^\s/][^\s]*|s3://[^\s]+|https://[^\s]+|configmap://[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[-._a-zA-Z0-9]+)$",
    ),
]


class LocalRef(KubeModel):
    """An object in the same namespace."""

    name: ObjectName


class ModelSource(KubeModel):
    """Where the model is and what it is."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "!has(self.credentialsRef) || self.uri.matches('^(oci|s3|https)://')",
                "credentialsRef: only oci, s3 and https ask for credentials: remove it",
                field="credentialsRef",
            )
        )
    )

    uri: ModelUri
    """oci://image/path, pvc://claim/path, configmap://name/key, https://..., s3://bucket/key."""
    format: ModelFormat
    """What the file is."""
    credentials_ref: LocalRef | None = None
    """A Secret in the same namespace: pull secret for oci (the only one in use yet), user and password or token for
    https and s3."""


class LatencyObjective(KubeModel):
    """What the user promises to callers: this percentile of the latency is at most so many milliseconds."""

    latency_milliseconds: Annotated[float, Field(gt=0, le=3_600_000)]
    """As the server measures it, queueing included; a decimal is allowed."""
    percentile: Annotated[float, Field(ge=50, lt=100)] = 99.0
    """Of the latency, from 50 to below 100."""


# Above 0, not from 0.001: the API server compares a whole number with a bound as whole numbers, and 0 would pass.
Rate = Annotated[float, Field(gt=0, le=10_000_000)]


def _not_above(low: str, high: str) -> dict[str, Any]:
    return rule(
        f"!has(self.{low}) || !has(self.{high}) || self.{low} <= self.{high}",
        f"{low} may not be above {high}: lower it",
        field=low,
    )


class Load(KubeModel):
    """The rate to plan for. Without ``requestsPerSecond`` the observed rate is followed, within min and max."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            _not_above("minRequestsPerSecond", "maxRequestsPerSecond"),
            _not_above("minRequestsPerSecond", "requestsPerSecond"),
            _not_above("requestsPerSecond", "maxRequestsPerSecond"),
        )
    )

    requests_per_second: Rate | None = None
    """Stated rate; it holds, whatever is observed."""
    min_requests_per_second: Rate | None = None
    """Planned for at least."""
    max_requests_per_second: Rate | None = None
    """Planned for at most."""


class Sharing(KubeModel):
    """With what and with whom a GPU may be shared."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "self.mode != 'Exclusive' || self.isolation != 'Any'",
                "isolation Any contradicts mode Exclusive, which shares with nobody: remove one of the two",
                field="isolation",
            )
        )
    )

    mode: Literal["Auto", "MPS", "MIG", "Exclusive"] = "Auto"
    """MPS: percents of a device; MIG: instances of their own; Exclusive: whole GPUs; Auto: whichever needs least."""
    isolation: Literal["Any", "Namespace", "None"] = "Namespace"
    """With whose workloads a fault domain may be shared: anybody's, the same namespace's, nobody's."""


class Output(KubeModel):
    """Where the result goes."""

    uri: Annotated[
        str,
        Field(
            max_length=512,
            pattern=r"^pvc://[a-z0-9]([-a-z0-9]*[a-z0-9])?/[^\s/][^\s]*$",
            json_schema_extra=rules(
                rule("!self.matches('(^|/)[.][.](/|$)')", "a path with '..' leaves its volume: write it out")
            ),
        ),
    ]
    """Where the artifact and the search's checkpoints go: pvc://claim/folder."""


class TuningPolicy(KubeModel):
    """Tune this model with TVM in the room that is left, and roll the result out if it is better."""

    trials: Annotated[int, Field(ge=1, le=1_000_000)] = 2000
    """Candidates measured in all, over all operators."""
    output: Output | None = None
    """Absent: the folder that the operator's policy names (tuning.output), with the model's namespace and name."""


class Toleration(KubeModel):
    """As in a pod's spec."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "has(self.key) || (has(self.operator) && self.operator == 'Exists')",
                "operator: without a key it has to be Exists",
                field="operator",
            ),
            rule(
                "!(has(self.operator) && self.operator == 'Exists' && has(self.value))",
                "value: operator Exists takes none: remove it",
                field="value",
            ),
        )
    )

    key: Annotated[str, Field(min_length=1, max_length=316)] | None = None
    operator: Literal["Exists", "Equal"] | None = None
    value: Annotated[str, Field(max_length=63)] | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None


class EnvironmentVariable(KubeModel):
    """One variable of the serving container."""

    name: Annotated[
        str, Field(max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", json_schema_extra=RESERVED_ENVIRONMENT)
    ]
    """None of those by which a share is enforced."""
    value: Annotated[str, Field(max_length=4096)] = ""


class PodTemplate(KubeModel):
    """What a user may add to the serving pods. Everything else of the pod is Gpulet's."""

    labels: Annotated[
        dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=32, json_schema_extra=LABELS)
    ] = {}
    annotations: Annotated[
        dict[str, Annotated[str, Field(max_length=4096)]], Field(max_length=32, json_schema_extra=ANNOTATIONS)
    ] = {}
    tolerations: Annotated[list[Toleration], Field(max_length=16)] = []
    service_account_name: ObjectName | None = None
    """Its token is not mounted; for pull secrets and workload identity."""
    cpu: Annotated[str, Field(pattern=r"^([1-9][0-9]{0,4}|[1-9][0-9]{0,6}m)$", max_length=8)] | None = None
    """Host CPU of one pod, such as 500m. Ignored on simulated GPUs, where the share itself is the CPU limit."""
    memory: Annotated[str, Field(pattern=r"^[1-9][0-9]{0,8}(Mi|Gi)$", max_length=12)] | None = None
    """Host memory of one pod, such as 2Gi."""
    environment: Annotated[list[EnvironmentVariable], Field(max_length=64, json_schema_extra=as_map("name"))] = []


class InferenceModelSpec(KubeModel):
    """What is promised of the model, and how it may run."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "!has(self.tuning) || self.model.format == 'onnx'",
                "tuning: only a model of format onnx can be tuned: give the model as onnx, or remove tuning",
                field="tuning",
            )
        )
    )

    model: ModelSource
    slo: LatencyObjective
    load: Load = Load()
    sharing: Sharing = Sharing()
    products: Annotated[list[Product], Field(min_length=1, max_length=16, json_schema_extra=AS_SET)] | None = None
    """GPU products it may run on, as NVML names them with dashes; absent: any."""
    priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] = 0
    """Who is left out when not all fit: the lower number first."""
    profile_ref: LocalRef | None = None
    """A ModelProfile to plan with; absent: Gpulet measures."""
    tuning: TuningPolicy | None = None
    """Absent: the model is served as it is. Present: Gpulet makes a TuningJob, and another one when the planned share
    has moved by more than 1.5 times."""
    pod_template: PodTemplate = PodTemplate()


class ReplicaCounts(KubeModel):
    """Shares that serve the model."""

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

    name: Annotated[str, Field(max_length=253)]
    """Of the Gpulet."""
    node: Annotated[str, Field(max_length=253)]
    gpu: Annotated[str, Field(max_length=64)]
    mig: Annotated[str, Field(max_length=32)] | None = None
    """MIG profile; absent: the whole GPU."""
    compute_percent: Percent
    ready: bool = False


class InferenceModelStatus(KubeModel):
    """What is planned, what serves, what was observed."""

    observed_generation: int | None = None
    conditions: Conditions = []
    """Profiled, Planned, Serving and from them Ready; ObjectiveMet, Enforced, and with spec.tuning Tuned; Reconciling
    and Stalled for kstatus."""
    replicas: ReplicaCounts | None = None
    rate: RateFigures | None = None
    latency: LatencyFigures | None = None
    batch: int | None = None
    """Planned batch."""
    url: Text | None = None
    """Where callers inside the cluster reach the model."""
    model_digest: Digest | None = None
    """sha256 of what is served, computed in the pod where the file is read."""
    source_digest: Digest | None = None
    """sha256 of the file at spec.model.uri, as the serving pods last found it."""
    serving_format: ModelFormat | None = None
    """tvm: a tuned artifact is served."""
    tuning_job: Annotated[str, Field(max_length=253)] | None = None
    """The TuningJob whose artifact is served or about to be."""
    gpulets: Annotated[list[GpuletLine], Field(max_length=1024, json_schema_extra=as_map("name"))] = []


class InferenceModel(Resource[InferenceModelSpec, InferenceModelStatus]):
    """A model, a latency objective and a rate: Gpulet sizes, places and serves it."""

    status: InferenceModelStatus = InferenceModelStatus()
