"""Kind ``TuningJob``: a bounded tuning of one model at the share and batch it is served at."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from gpulet.api.base import Conditions, Digest, KubeModel, Resource, Text
from gpulet.api.cel import exactly_one_of, immutable, rule, rules
from gpulet.api.inferencemodel import LocalRef, ModelSource, Output

# A number or this word: x-kubernetes-int-or-string, the bounds become a CEL rule.
Auto = Literal["Auto"]
_FROZEN = rules(immutable("TuningJob"))


class Parallelism(KubeModel):
    """How many programs work on the job."""

    clients: Annotated[int, Field(ge=1, le=256)] | Auto = "Auto"
    """Pods that search and compile; each takes a shard of the operators and needs about one core."""
    servers: Annotated[int, Field(ge=1, le=64)] | Auto = "Auto"
    """Shares in which candidates are measured."""


class TuningJobSpec(KubeModel):
    """What is tuned, and with how much effort. Decided once: only suspend and deadlineSeconds may change."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            exactly_one_of("modelRef", "model"),
            # A field's own rule is not asked when the field comes or goes.
            rule(
                "has(self.model) == has(oldSelf.model)",
                "modelRef and model are immutable: create a new TuningJob instead",
            ),
        )
    )

    model_ref: Annotated[LocalRef | None, Field(json_schema_extra=_FROZEN)] = None
    """An InferenceModel in the same namespace. Exactly one of modelRef and model."""
    model: Annotated[ModelSource | None, Field(json_schema_extra=_FROZEN)] = None
    """A model that is served by no InferenceModel. Exactly one of modelRef and model."""
    batch: Annotated[Annotated[int, Field(ge=1, le=65536)] | Auto, Field(json_schema_extra=_FROZEN)] = "Auto"
    """Auto: the batch that is planned when the job starts."""
    compute_percent: Annotated[Annotated[int, Field(ge=1, le=100)] | Auto, Field(json_schema_extra=_FROZEN)] = "Auto"
    """Auto: the share that is planned when the job starts."""
    trials: Annotated[int, Field(ge=1, le=1_000_000, json_schema_extra=_FROZEN)] = 2000
    """Candidates measured in all, over all operators."""
    parallelism: Annotated[Parallelism, Field(json_schema_extra=_FROZEN)] = Parallelism()
    deadline_seconds: Annotated[int, Field(ge=1, le=2_592_000)] = 7200
    """Counted from the start of the search; anew when a suspended job, or one whose model was gone, goes on."""
    suspend: bool = False
    """True: what runs is taken down, what was measured stays; false again: the search goes on from there."""
    output: Annotated[Output, Field(json_schema_extra=_FROZEN)]


class TrialFigures(KubeModel):
    """Candidates."""

    done: int = 0
    total: int = 0


class WorkerFigures(KubeModel):
    """Programs at work now."""

    clients: int = 0
    servers: int = 0


class TuningLatency(KubeModel):
    """Milliseconds a batch, all measured in the job's own share, one after the other."""

    before_milliseconds: float | None = None
    """What is served now (or would be, for an inline model)."""
    untuned_milliseconds: float | None = None
    """The same model compiled by TVM without tuning."""
    after_milliseconds: float | None = None
    onnx_runtime_milliseconds: float | None = None


class Artifact(KubeModel):
    """The tuned model."""

    uri: Text
    digest: Digest
    """sha256:... of the file."""
    tvm_version: Annotated[str, Field(max_length=64)] | None = None
    model_uri: Text | None = None
    """The model it was tuned from: of another model it says nothing."""
    model_digest: Digest | None = None
    """sha256:... of that model's file: once another file lies there, the artifact is not served."""


class TuningJobStatus(KubeModel):
    """How far the job is, and what came out."""

    observed_generation: int | None = None
    conditions: Conditions = []
    """Succeeded: Unknown while the job goes on. Reconciling and Stalled for kstatus."""
    phase: Literal["Pending", "Searching", "Merging", "Succeeded", "Failed", "Suspended"] | None = None
    trials: TrialFigures | None = None
    workers: WorkerFigures | None = None
    compute_percent: int | None = None
    batch: int | None = None
    latency: TuningLatency | None = None
    artifact: Artifact | None = None
    adopted: bool | None = None
    """Whether the result won against what was served."""
    start_time: Annotated[str, Field(max_length=32, json_schema_extra={"format": "date-time"})] | None = None
    completion_time: Annotated[str, Field(max_length=32, json_schema_extra={"format": "date-time"})] | None = None


class TuningJob(Resource[TuningJobSpec, TuningJobStatus]):
    """A bounded TVM tuning of one model, in shares that no serving shares a fault domain with."""

    status: TuningJobStatus = TuningJobStatus()
