"""How objects are named to people: one word or figure each, the same in every command. Pure."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from gpulet.api import names
from gpulet.api.gpulet import Gpulet
from gpulet.api.inferencemodel import InferenceModel
from gpulet.api.tuningjob import TuningJob
from gpulet.controller.inventory import gpus
from gpulet.controller.profiles import adopted_job
from gpulet.controller.world import World
from gpulet.status.conditions import find


def number(value: float | None, unit: str = "") -> str:
    """Three significant digits, or a dash."""
    return "-" if value is None else f"{value:.3g}{unit}"


def condition(thing: Any, type_: str) -> str:
    """A condition's status, or a dash while nobody has said anything."""
    found = find(thing.status.conditions, type_)
    return found.status if found is not None else "-"


def reason(thing: Any, type_: str) -> str:
    found = find(thing.status.conditions, type_)
    return found.reason if found is not None else "-"


def device_names(world: World) -> dict[str, str]:
    """``gpu-<n>`` by UUID: the number of the GPU on its node, as a person would say it."""
    counts: dict[str, int] = {}
    result = {}
    for gpu in gpus(world.slices.values()):
        index = counts.get(gpu.node, 0)
        counts[gpu.node] = index + 1
        result[gpu.uuid] = f"gpu-{index}"
    return result


def workload(gpulet: Gpulet) -> str:
    """What runs in a share."""
    if gpulet.spec.models:
        served = ", ".join(f"{m.name} b{m.batch}{' tuned' if m.artifact else ''}" for m in gpulet.spec.models)
        return f"serve {served}"
    if gpulet.spec.tuning:
        return f"tune {gpulet.spec.tuning.job} ({gpulet.spec.tuning.role})"
    return f"profile {gpulet.spec.profiling.profile}" if gpulet.spec.profiling else "-"


def objective(model: InferenceModel) -> str:
    slo = model.spec.slo
    return f"p{slo.percentile:g} <= {slo.latency_milliseconds:g} ms"


def device(gpulet: Gpulet, devices: Mapping[str, str]) -> str:
    """The GPU, and its placement if it is cut."""
    ref = gpulet.spec.device
    name = devices.get(ref.gpu, ref.gpu)
    return f"{name} {ref.mig.profile}@{ref.mig.start}" if ref.mig else name


class Result(StrEnum):
    """What became of a tuning's result, as it is said."""

    NONE = "-"
    LOST = "not adopted"
    WON = "adopted"
    """Of a job that names no model of the cluster: nothing can serve it."""
    WAITS = "adopted, not served yet"
    SERVED = "adopted and served"
    PAST = "adopted, served no more"
    """The model has another file by now, a later job has won, or the model is gone."""


def result_of(world: World, job: TuningJob) -> Result:
    """What became of a tuning's result."""
    if job.status.adopted is None:
        return Result.NONE
    if not job.status.adopted:
        return Result.LOST
    if job.spec.model_ref is None:
        return Result.WON
    key = (job.metadata.namespace, job.spec.model_ref.name)
    model = world.models.get(key)
    served = adopted_job(world, model) if model is not None else None
    if model is None or served is None or served.key != job.key:
        return Result.PAST
    slots = [of for g in world.gpulets_of(names.LABEL_MODEL, *key) for of in g.spec.models or ()]
    tuned = bool(slots) and all(slot.artifact is not None for slot in slots)
    return Result.SERVED if tuned and model.status.serving_format == "tvm" else Result.WAITS
