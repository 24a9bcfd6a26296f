"""`gpulet explain`: why a model has the shares it has, or why it has none."""

from typing import Any

from gpulet.api import names
from gpulet.api.base import Condition
from gpulet.api.inferencemodel import InferenceModel
from gpulet.cli.words import Result, device, device_names, number, objective, result_of
from gpulet.controller.inventory import products_of
from gpulet.controller.profiles import choose
from gpulet.controller.world import World
from gpulet.model.profile import Profile
from gpulet.status.gpulet import scheduling_refusal, waiting_reason


class UnknownModelError(ValueError):
    """There is no such model; the message names those there are."""


def find_model(world: World, text: str) -> InferenceModel:
    """The model of ``NAMESPACE/NAME``; raises UnknownModelError."""
    namespace, _, name = text.partition("/")
    model = world.models.get((namespace, name))
    if model is None:
        known = ", ".join("/".join(key) for key in sorted(world.models)) or "none"
        raise UnknownModelError(f"{text}: no such InferenceModel; write NAMESPACE/NAME; there are: {known}")
    return model


def facts(world: World, model: InferenceModel) -> dict[str, Any]:
    """What is known of one model, as JSON has it."""
    choice = choose(world, model, products_of(world.slices.values()))
    rate, latency = model.status.rate, model.status.latency
    return {
        "model": "/".join(model.key),
        "objective": objective(model),
        "conditions": [_condition(c) for c in model.status.conditions],
        "rate": rate.to_dict() if rate else {},
        "latency": latency.to_dict() if latency else {},
        "profile": _profile(choice.profile, choice.profiled.message),
        "tuned": choice.artifact is not None,
        "servedFrom": choice.artifact or model.spec.model.uri,
        "shares": _shares(world, model),
        "tuning": _tuning(world, model),
    }


def _condition(condition: Condition) -> dict[str, str]:
    return {
        "type": condition.type,
        "status": condition.status,
        "reason": condition.reason,
        "message": condition.message,
        "since": condition.last_transition_time.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def _profile(profile: Profile | None, message: str) -> dict[str, Any]:
    points = profile.points if profile else ()
    return {
        "source": profile.source if profile else None,
        "message": message,
        "points": [
            {
                "product": p.product,
                "mig": p.mig,
                "computePercent": p.compute_percent,
                "batch": p.batch,
                "meanMilliseconds": round(p.mean_us / 1000, 3),
                "p99Milliseconds": round(p.p99_us / 1000, 3),
                "throughputPerSecond": round(p.throughput_per_s, 2),
            }
            for p in sorted(points, key=lambda p: (p.product, p.mig or "", p.batch, p.compute_percent))
        ],
    }


def _shares(world: World, model: InferenceModel) -> list[dict[str, Any]]:
    devices, result = device_names(world), []
    for gpulet in world.gpulets_of(names.LABEL_MODEL, *model.key):
        pod = world.pods.get(gpulet.key)
        result.append(
            {
                "gpulet": gpulet.metadata.name,
                "node": gpulet.spec.device.node,
                "device": device(gpulet, devices),
                "computePercent": gpulet.spec.compute_percent,
                "memory": gpulet.spec.memory,
                "conditions": [_condition(c) for c in gpulet.status.conditions],
                "scheduler": scheduling_refusal(pod),
                "waitsFor": waiting_reason(pod) if pod else "no pod yet",
            }
        )
    return result


def _tuning(world: World, model: InferenceModel) -> list[dict[str, Any]]:
    return [
        {
            "job": name,
            "phase": job.status.phase,
            "adopted": job.status.adopted,
            "result": result_of(world, job),
            "conditions": [_condition(c) for c in job.status.conditions if c.type == "Succeeded"],
        }
        for (namespace, name), job in sorted(world.jobs.items())
        if namespace == model.metadata.namespace
        and job.spec.model_ref is not None
        and job.spec.model_ref.name == model.metadata.name
    ]


def _source(found: dict[str, Any]) -> str:
    if found["tuned"] and any(t["result"] == Result.WAITS for t in found["tuning"]):
        return f"  to be served from {found['servedFrom']}: {Result.WAITS}"
    return f"  served from {found['servedFrom']}"


def text(found: dict[str, Any]) -> list[str]:
    """The same as lines for people."""
    rate, latency = found["rate"], found["latency"]
    lines = [
        f"{found['model']}: {found['objective']}",
        _source(found),
        f"  rate      planned {number(rate.get('planned'))}/s, sustainable {number(rate.get('sustainable'))}/s, "
        f"seen {number(rate.get('observed'))}/s",
        f"  latency   predicted {number(latency.get('predictedMilliseconds'))} ms, "
        f"seen {number(latency.get('observedPercentileMilliseconds'))} ms",
        "  conditions",
    ]
    lines += [f"    {c['type']:13}{c['status']:8}{c['reason']}: {c['message']}" for c in found["conditions"]]
    lines.append(f"  profile   {found['profile']['source'] or found['profile']['message']}")
    lines += [
        f"    {p['product']} {p['mig'] or 'whole'} {p['computePercent']:3} % batch {p['batch']}: "
        f"mean {p['meanMilliseconds']} ms, p99 {p['p99Milliseconds']} ms, {p['throughputPerSecond']}/s"
        for p in found["profile"]["points"]
    ]
    lines.append("  shares" if found["shares"] else "  shares    none")
    for share in found["shares"]:
        lines.append(f"    {share['gpulet']}: {share['computePercent']} % of {share['node']} {share['device']}")
        lines += [f"      {c['type']:13}{c['status']:8}{c['reason']}: {c['message']}" for c in share["conditions"]]
        if share["scheduler"]:
            lines.append(f"      the scheduler says: {share['scheduler']}")
        if share["waitsFor"]:
            lines.append(f"      waits for: {share['waitsFor']}")
    for tuning in found["tuning"]:
        result = "" if tuning["result"] == Result.NONE else f", {tuning['result']}"
        lines.append(f"  tuning    {tuning['job']}: {tuning['phase'] or 'Pending'}{result}")
        lines += [f"      {c['type']:13}{c['status']:8}{c['reason']}: {c['message']}" for c in tuning["conditions"]]
    return lines
