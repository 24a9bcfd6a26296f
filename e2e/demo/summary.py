"""What happened, in a few lines and as JSON. Pure: from what was read to what is said."""

from typing import Any

from rich.console import Console
from rich.table import Table

from gpulet.api.inferencemodel import InferenceModel
from gpulet.api.tuningjob import TuningJob
from gpulet.cli.words import condition, number, result_of
from gpulet.controller.world import World


def facts(world: World, plan: dict[str, Any], loads: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """``plan``: the JSON of `gpulet plan --from-cluster`; ``loads``: `gpulet bench` reports by model."""
    serving = {g.spec.device.gpu for g in world.gpulets.values() if g.spec.models}
    return {
        "gpusUsed": len(serving),
        "gpusWithOneGpuAModel": len(world.models),
        "lowerBound": plan["lowerBound"],
        "boundKind": plan["boundKind"],
        "models": [_model(model, loads.get(name, {})) for (_, name), model in sorted(world.models.items())],
        "tuning": [_tuning(name, job, world) for (_, name), job in sorted(world.jobs.items())],
    }


def _model(model: InferenceModel, load: dict[str, Any]) -> dict[str, Any]:
    status = model.status
    latency = status.latency
    seen = load.get("latencyMilliseconds") or {}
    return {
        "model": model.metadata.name,
        "percentile": model.spec.slo.percentile,
        "objectiveMilliseconds": model.spec.slo.latency_milliseconds,
        "computePercents": [line.compute_percent for line in status.gpulets],
        "predictedMilliseconds": latency.predicted_milliseconds if latency else None,
        "observedMilliseconds": latency.observed_percentile_milliseconds if latency else None,
        "objectiveMet": condition(model, "ObjectiveMet"),
        "servingFormat": status.serving_format,
        "sent": load.get("sent"),
        "errors": load.get("errors"),
        "clientP50Milliseconds": seen.get("p50"),
        "clientP99Milliseconds": seen.get("p99"),
    }


def _tuning(name: str, job: TuningJob, world: World) -> dict[str, Any]:
    status = job.status
    latency = status.latency
    served = world.models.get((job.metadata.namespace, job.spec.model_ref.name if job.spec.model_ref else ""))
    return {
        "job": name,
        "phase": status.phase,
        "trials": status.trials.done if status.trials else 0,
        "computePercent": status.compute_percent,
        "batch": status.batch,
        "beforeMilliseconds": latency.before_milliseconds if latency else None,
        "untunedMilliseconds": latency.untuned_milliseconds if latency else None,
        "afterMilliseconds": latency.after_milliseconds if latency else None,
        "onnxRuntimeMilliseconds": latency.onnx_runtime_milliseconds if latency else None,
        "adopted": status.adopted,
        "result": result_of(world, job),
        "servedNow": served.status.serving_format if served is not None else None,
        "message": next((c.message for c in status.conditions if c.type == "Succeeded"), ""),
    }


def show(found: dict[str, Any], console: Console) -> None:
    """For people."""
    console.print()
    console.print(
        f"GPUs used: {found['gpusUsed']}; with one GPU a model: {found['gpusWithOneGpuAModel']}; "
        f"lower bound: {found['lowerBound']} ({found['boundKind']})"
    )
    table = Table(title="Latency against objectives (ms)", title_justify="left")
    for column in ("model", "serves", "percent", "objective", "planned", "seen", "met", "caller p50", "caller p99"):
        table.add_column(column, no_wrap=True)
    for m in found["models"]:
        table.add_row(
            m["model"],
            m["servingFormat"] or "-",
            " ".join(map(str, m["computePercents"])) or "-",
            f"p{m['percentile']:g} <= {m['objectiveMilliseconds']:g}",
            number(m["predictedMilliseconds"]),
            number(m["observedMilliseconds"]),
            m["objectiveMet"],
            number(m["clientP50Milliseconds"]),
            number(m["clientP99Milliseconds"]),
        )
    console.print(table)
    for t in found["tuning"]:
        console.print(
            f"Tuning {t['job']}: {t['phase']}, {t['trials']} candidates measured at {t['computePercent']} % and batch "
            f"{t['batch']}: {number(t['beforeMilliseconds'])} ms before, {number(t['afterMilliseconds'])} ms after; "
            f"ONNX Runtime {number(t['onnxRuntimeMilliseconds'])} ms, untuned {number(t['untunedMilliseconds'])} ms. "
            f"Result: {t['result']}; the model is served as {t['servedNow'] or 'nothing'}.",
            soft_wrap=True,
        )
        if t["phase"] == "Failed":
            console.print(f"  {t['message']}", soft_wrap=True)
