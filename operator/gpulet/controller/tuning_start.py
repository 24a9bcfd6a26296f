"""What a TuningJob is about to tune, and what its builders need to know of it. Pure."""

from dataclasses import dataclass

from gpulet.api import names
from gpulet.api.inferencemodel import InferenceModel, ModelSource
from gpulet.api.policy import Policy
from gpulet.api.tuningjob import TuningJob
from gpulet.api.workload import ServedModel, TuneSpec
from gpulet.build.source import UnsupportedSourceError, model_file
from gpulet.build.tuning import Tuning
from gpulet.controller.profiles import adopted_job
from gpulet.controller.world import World
from gpulet.model.plan import Plan
from gpulet.status.conditions import Fact, no, unknown

TUNABLE = ("onnx",)
# Below this a cost model has too little to learn from: random candidates are as good and cost half the CPU.
_LEARNING_TRIALS = 256
_MODEL = "model"
_BEFORE = "before"


@dataclass(frozen=True)
class Start:
    """What a job is about to tune."""

    source: ModelSource
    compute_percent: int
    batch: int
    memory_mib: int
    artifact: str | None = None
    """Tuned artifact that is served now and has to be beaten."""


def start_of(world: World, job: TuningJob, plan: Plan, policy: Policy) -> Start | Fact:
    """Model, share and batch of the job; a False fact if it can never start, Unknown if it has to wait."""
    source: ModelSource
    planned, artifact = None, None
    if job.spec.model is not None:
        source = job.spec.model
    else:
        name = job.spec.model_ref.name if job.spec.model_ref else ""
        model = world.models.get((job.metadata.namespace, name))
        if model is None or model.metadata.deletion_timestamp is not None:
            return unknown("Succeeded", "ModelNotFound", f"spec.modelRef: no InferenceModel {name} in this namespace")
        source = model.spec.model
        planned = _planned(plan, model)
        served = adopted_job(world, model)
        artifact = served.status.artifact.uri if served is not None and served.status.artifact is not None else None
    if source.format not in TUNABLE:
        message = f"format {source.format} cannot be tuned; only {', '.join(TUNABLE)} can: give the model as ONNX"
        return no("Succeeded", "NotTunable", message)
    try:
        model_file(source)
    except UnsupportedSourceError as error:
        return no("Succeeded", "UnsupportedSource", str(error))
    percent = job.status.compute_percent or _number(job.spec.compute_percent, planned[0] if planned else None)
    batch = job.status.batch or _number(job.spec.batch, planned[1] if planned else None)
    if percent is None or batch is None:
        return unknown("Succeeded", "WaitingForPlan", "computePercent and batch Auto: the model is not planned yet")
    memory = planned[2] if planned else policy.profiling.memory_mebibytes
    return Start(source, percent, batch, memory, artifact)


def _planned(plan: Plan, model: InferenceModel) -> tuple[int, int, int] | None:
    """(percent, batch, MiB) of the model's first planned replica."""
    for placed in plan.placed:
        if (placed.model.namespace, placed.model.name) == model.key:
            slot = placed.slots[0]
            return slot.compute_percent, slot.batch, slot.memory_mib
    return None


def _number(value: int | str, auto: int | None) -> int | None:
    return auto if value == "Auto" else int(value)


def tuning_of(job: TuningJob, start: Start, policy: Policy, *, tracker_host: str) -> Tuning:
    """All that the builders need."""
    clients = int(policy.tuning.clients if job.spec.parallelism.clients == "Auto" else job.spec.parallelism.clients)
    claim, _, folder = job.spec.output.uri.removeprefix("pvc://").partition("/")
    file = model_file(start.source)
    files, before = {_MODEL: file}, None
    if start.artifact is not None:
        files[_BEFORE] = model_file(ModelSource(uri=start.artifact, format="tvm"))
        before = ServedModel(name=_BEFORE, format="tvm", path=files[_BEFORE].path, batch=start.batch)
    return Tuning(
        job={"apiVersion": names.API_VERSION, "kind": "TuningJob", "metadata": job.metadata.to_dict()},
        spec=TuneSpec(
            job=job.metadata.name,
            model=ServedModel(name=_MODEL, format=start.source.format, path=file.path, batch=start.batch),
            before=before,
            compute_percent=start.compute_percent,
            trials=job.spec.trials,
            clients=clients,
            tracker_host=tracker_host,
            strategy="evolutionary" if job.spec.trials >= _LEARNING_TRIALS else "replay-trace",
        ),
        files=files,
        image=policy.images.tuning,
        output_claim=claim,
        output_folder=folder.strip("/"),
    )
