"""Kind ``TuningJob``: a bounded tuning of one model at the share and batch it is served at."""

from typing import Annotated, Literal

from pydantic import Field

from gpulet.api.base import Condition, KubeModel, Percent, Resource
from gpulet.api.inferencemodel import LocalRef, ModelSource

Auto = Literal["Auto"]
# Written as a number or the word Auto: x-kubernetes-int-or-string with a CEL rule.
AutoOrInt = Annotated[int | str, Field()]


class Parallelism(KubeModel):
    clients: AutoOrInt = "Auto"
    """Pods that search and compile; each takes a shard of the operators and needs about one core."""
    servers: AutoOrInt = "Auto"
    """Shares in which candidates are measured."""


class Output(KubeModel):
    uri: Annotated[str, Field(max_length=1024, pattern=r"^pvc://[a-z0-9]([-a-z0-9]*[a-z0-9])?/[^\s]+$")]
    """Where the artifact and the search's checkpoints go: pvc://claim/folder."""


class TuningJobSpec(KubeModel):
    model_ref: LocalRef | None = None
    model: ModelSource | None = None
    """Exactly one of modelRef and model."""
    batch: AutoOrInt = "Auto"
    compute_percent: AutoOrInt = "Auto"
    trials: Annotated[int, Field(ge=1, le=1_000_000)] = 2000
    """Candidates measured in all, over all operators."""
    parallelism: Parallelism = Parallelism()
    deadline_seconds: Annotated[int, Field(ge=1, le=2_592_000)] = 7200
    suspend: bool = False
    output: Output


class TrialFigures(KubeModel):
    done: int = 0
    total: int = 0


class WorkerFigures(KubeModel):
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
    uri: str
    digest: str
    """sha256:... of the file."""
    tvm_version: str | None = None
    model_uri: str | None = None
    """The model it was tuned from: of another model it says nothing."""


class TuningJobStatus(KubeModel):
    observed_generation: int | None = None
    conditions: list[Condition] = []
    phase: Literal["Pending", "Searching", "Merging", "Succeeded", "Failed", "Suspended"] | None = None
    trials: TrialFigures | None = None
    workers: WorkerFigures | None = None
    compute_percent: int | None = None
    batch: int | None = None
    latency: TuningLatency | None = None
    artifact: Artifact | None = None
    adopted: bool | None = None
    start_time: str | None = None
    completion_time: str | None = None


class TuningJob(Resource[TuningJobSpec, TuningJobStatus]):
    """A bounded TVM tuning of one model, in shares that no serving shares a fault domain with."""

    status: TuningJobStatus = TuningJobStatus()
