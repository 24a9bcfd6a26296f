"""What a builder tells the program in a pod, as one JSON argument, and what the program answers.

Pods of Gpulet have no access to the API server. A serving pod answers over HTTP; a pod that ends answers in its
termination message (4,096 bytes at most).
"""

from typing import Annotated, Literal

from pydantic import Field

from gpulet.api.base import KubeModel
from gpulet.api.inferencemodel import ModelFormat
from gpulet.api.modelprofile import Point

HTTP_PORT = 8000
GRPC_PORT = 8001
METRICS_PORT = 8002
REPORT_PORT = 8003
"""Of `gpulet serve`: GET /report answers a ServeReport."""
TRACKER_PORT = 9190
PROGRESS_PORT = 9191
"""Of `gpulet tune-tracker`: GET /progress answers a TuneProgress."""
RPC_SERVER_PORT = 9090

MODEL_ROOT = "/run/gpulet/models"
"""A model's volume is mounted at MODEL_ROOT/<model name>; ``path`` below is relative to that."""
SOURCE_ROOT = "/run/gpulet/source"
"""Where a tuned artifact is served, the volume of the model's own file is mounted at SOURCE_ROOT/<model name>."""
WORK_ROOT = "/run/gpulet/work"
"""A TuningJob's output folder (a sub-path of its claim) is mounted here in each of its pods."""


LONGEST_PATIENCE_S = 600.0


class ServedModel(KubeModel):
    name: str
    format: ModelFormat
    path: str
    """Of the file, below MODEL_ROOT/<name>."""
    batch: int = 1
    instances: int = 1
    queue_delay_microseconds: int = 0
    threads: int = 1
    source: str | None = None
    """Of the model's own file, below SOURCE_ROOT/<name>, where ``path`` is an artifact tuned from it."""


class ServeSpec(KubeModel):
    """Argument of `gpulet serve`."""

    models: Annotated[list[ServedModel], Field(min_length=1)]
    percentiles: list[float] = [50.0, 99.0]
    """Latency percentiles that the metrics must carry: the objectives of the models among them."""
    patience_seconds: Annotated[float, Field(ge=0, le=LONGEST_PATIENCE_S)] = 10.0
    """How long a request in flight is waited for at the end, after callers have gone: twice the objective, or more."""


class ModelReport(KubeModel):
    name: str
    digest: str
    """sha256:... of the model file."""
    source_digest: str | None = None
    """sha256:... of the model's own file as it lies there now: another one may have been put in its place."""
    ready: bool


class ServeReport(KubeModel):
    models: list[ModelReport]
    runtime: str
    runtime_version: str
    compute_percent: int | None = None
    """CUDA_MPS_ACTIVE_THREAD_PERCENTAGE as the process sees it."""
    error: str | None = None
    """Why a model cannot be served, with the runtime's own words and the remedy."""
    reason: str | None = None
    """CamelCase reason of the error: ModelMissing, ModelBroken, UnsupportedFormat."""


class ProfileSpec(KubeModel):
    """Argument of `gpulet profile` (the prober; the server beside it runs `gpulet serve`)."""

    model: str
    product: str
    mig: str | None = None
    compute_percent: int
    memory_mebibytes: int
    batches: list[int]
    seconds_per_point: float = 5.0


class ProfileReport(KubeModel):
    """Termination message of the prober."""

    model_digest: str
    runtime: str
    runtime_version: str
    points: list[Point]
    error: str | None = None


class TuneSpec(KubeModel):
    """Argument of `gpulet tune-tracker`, `tune-server`, `tune-client` and `tune-merge`."""

    job: str
    model: ServedModel
    before: ServedModel | None = None
    """What is served now, if it is not ``model``."""
    compute_percent: int
    trials: int
    clients: int
    ordinal: int = 0
    tracker_host: str = ""
    strategy: Literal["evolutionary", "replay-trace"] = "evolutionary"
    target: Literal["llvm"] = "llvm"
    seed: int = 0

    @property
    def tracker_key(self) -> str:
        """The tracker's key carries the share: candidates are measured only on servers of one share."""
        return f"{self.target}.share{self.compute_percent}"


class ClientProgress(KubeModel):
    ordinal: int
    trials: int
    failed: int = 0
    finished: bool = False


class TuneProgress(KubeModel):
    clients: list[ClientProgress]
    servers: int = 0
    """Registered at the tracker."""


class TuneReport(KubeModel):
    """Termination message of the merge step."""

    digest: str | None = None
    path: str | None = None
    """Of the artifact, below the job's output folder."""
    tvm_version: str | None = None
    model_digest: str | None = None
    """sha256:... of the model file that it was tuned from."""
    records: int = 0
    max_difference: float | None = None
    """Largest absolute difference of the tuned from the untuned output."""
    before_milliseconds: float | None = None
    untuned_milliseconds: float | None = None
    after_milliseconds: float | None = None
    onnx_runtime_milliseconds: float | None = None
    adopted: bool = False
    """The tuned artifact beat what is served now, measured in turns in the same share."""
    error: str | None = None
    reason: str | None = None
    """CamelCase reason of the error: NotTunable, ModelMissing, ModelBroken, OutputDiffers, MergeFailed."""


class ShareConfig(KubeModel):
    """Opaque configuration in a claim: with whom its fault domain may be shared. The agent refuses what breaks it."""

    api_version: Literal["gpulet.dev/v1alpha1"] = "gpulet.dev/v1alpha1"
    kind: Literal["ShareConfig"] = "ShareConfig"
    isolation: Literal["Any", "Namespace", "None"] = "Namespace"
    purpose: Literal["serve", "tune", "profile"] = "serve"
