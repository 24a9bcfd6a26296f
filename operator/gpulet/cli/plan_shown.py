"""A plan as JSON for scripts, and as tables for people."""

from collections.abc import Sequence
from typing import Any

import yaml
from rich.console import Group
from rich.table import Table

from gpulet.cli.plan import Answer
from gpulet.model.plan import Placed, Slot, Unplaced
from gpulet.model.steps import Step


def as_json(answer: Answer) -> dict[str, Any]:
    """The keys that scripts may rely on."""
    plan = answer.plan
    return {
        "gpus": plan.gpus,
        "lowerBound": plan.lower_bound,
        "boundKind": plan.bound_kind,
        "boundCovers": list(plan.bound_covers),
        "solveSeconds": round(answer.solve_seconds, 4),
        "rateFactor": round(answer.rate_factor, 6),
        "rateFactorBound": None if plan.rate_factor_bound is None else round(plan.rate_factor_bound, 6),
        "models": [_model(*pair) for pair in fates(answer)],
        "gpulets": [_gpulet(slot) for slot in in_order(plan.slots)],
        "steps": [_step(step) for step in answer.steps],
        "notes": list(answer.notes),
    }


def as_yaml(answer: Answer) -> str:
    """The same keys as YAML."""
    return yaml.safe_dump(as_json(answer), sort_keys=False, allow_unicode=True)


def in_order(slots: Sequence[Slot]) -> list[Slot]:
    """By device, then size and model."""
    return sorted(
        slots,
        key=lambda s: (s.device.node, s.device.gpu, s.device.start or 0, -s.compute_percent, s.models, s.ordinal),
    )


def fates(answer: Answer) -> list[tuple[Placed | None, Unplaced | None]]:
    """What became of each model, by name. Both: it has shares, but fewer than its rate needs."""
    placed = {p.model: p for p in answer.plan.placed}
    out = {u.model: u for u in answer.unplaced}
    return [(placed.get(model), out.get(model)) for model in sorted({*placed, *out})]


def why(placed: Placed | None, out: Unplaced | None) -> str:
    """One line for a model: what limits it, or what would make it fit."""
    if out is not None:
        return f"{out.reason}: {out.message}"
    return placed.reason if placed is not None else ""


def _model(placed: Placed | None, out: Unplaced | None) -> dict[str, Any]:
    model = placed.model if placed is not None else out.model if out is not None else None
    assert model is not None
    return {
        "namespace": model.namespace,
        "name": model.name,
        "fits": out is None,
        "reason": why(placed, out),
        "predictedLatencyMilliseconds": None if placed is None else round(placed.predicted_latency_ms, 3),
        "sustainableRatePerSecond": 0.0 if placed is None else round(placed.sustainable_per_s, 3),
    }


def _gpulet(slot: Slot) -> dict[str, Any]:
    device = slot.device
    turns = [(t.model, t.batch) for t in slot.turns] or [(slot.model, slot.batch)]
    cycle = {"cycleMicroseconds": slot.cycle_us} if slot.cycle_us else {}
    return {
        "node": device.node,
        "gpu": device.gpu,
        "mig": None if device.profile is None else {"profile": device.profile, "start": device.start},
        "computePercent": slot.compute_percent,
        "memory": f"{slot.memory_mib}Mi",
        "clients": slot.clients,
        "models": [
            {"namespace": model.namespace, "name": model.name, "batch": batch, "instances": slot.instances}
            for model, batch in turns
        ],
        **cycle,
    }


def _step(step: Step) -> dict[str, Any]:
    """Steps of one stage run side by side; keys that do not apply are left out."""
    found: dict[str, Any] = {"stage": step.stage, "kind": step.kind, "reason": step.reason}
    if step.slot is not None:
        found["gpulet"] = _gpulet(step.slot)
    if step.device is not None:
        found["device"] = {"node": step.device.node, "gpu": step.device.gpu}
    if step.model is not None:
        found["model"] = {"namespace": step.model.namespace, "name": step.model.name}
        found["routed"] = [_gpulet(slot) for slot in step.routed]
    if step.temporary:
        found["temporary"] = True
    return found


def step_words(step: Step) -> str:
    """What is done, to what."""
    if step.slot is not None:
        where = f"{step.slot.device.node} {step.slot.device.gpu}"
        mig = "" if step.slot.device.profile is None else f" {step.slot.device.profile}@{step.slot.device.start}"
        stands_in = " (stands in)" if step.temporary else ""
        return f"{', '.join(map(str, step.slot.models))}: {step.slot.compute_percent} % of {where}{mig}{stands_in}"
    if step.device is not None:
        return f"{step.device.node} {step.device.gpu}"
    return f"{step.model} to {len(step.routed)} replicas"


def as_tables(answer: Answer) -> Group:
    """The same for people."""
    shares = Table(title="Shares", title_justify="left")
    for column in ("node", "GPU", "MIG", "percent", "memory MiB", "model", "batch", "instances"):
        shares.add_column(column)
    for slot in in_order(answer.plan.slots):
        shares.add_row(
            slot.device.node,
            slot.device.gpu,
            "-" if slot.device.profile is None else f"{slot.device.profile}@{slot.device.start}",
            str(slot.compute_percent),
            str(slot.memory_mib),
            ", ".join(map(str, slot.models)),
            ", ".join(str(t.batch) for t in slot.turns) or str(slot.batch),
            str(slot.instances),
        )
    models = Table(title="Models", title_justify="left")
    for column in ("model", "fits", "predicted ms", "why"):
        models.add_column(column)
    for placed, out in fates(answer):
        model = placed.model if placed is not None else out.model if out is not None else None
        predicted = "-" if placed is None else f"{placed.predicted_latency_ms:.3g}"
        models.add_row(str(model), "yes" if out is None else "in part" if placed else "no", predicted, why(placed, out))
    parts: list[Table | str] = [shares, models]
    if answer.problem.current:
        parts.append(_steps_table(answer))
    return Group(*parts, summary(answer), *(f"note: {note}" for note in answer.notes))


def _steps_table(answer: Answer) -> Table:
    """The way from what exists; from nothing it would only repeat the shares."""
    table = Table(title="Steps from what exists", title_justify="left")
    for column in ("stage", "step", "what", "why"):
        table.add_column(column)
    for step in answer.steps:
        table.add_row(str(step.stage), step.kind, step_words(step), step.reason)
    return table


def summary(answer: Answer) -> str:
    """One line: how many GPUs, and how few it can be at best."""
    plan = answer.plan
    covers = f", covers {', '.join(plan.bound_covers)}" if plan.bound_covers else ""
    if plan.rate_factor is not None:
        most = "" if plan.rate_factor_bound is None else f", at best {plan.rate_factor_bound:.3g}"
        rise = f"all rates times {plan.rate_factor:.3g}{most}"
    elif answer.rate_factor:
        rise = f"rates could rise by {answer.rate_factor:.3g} times"
    else:
        rise = "not all rates are served"
    return (
        f"{plan.gpus} GPUs of {len(answer.problem.gpus)}; lower bound {plan.lower_bound} ({plan.bound_kind}{covers}); "
        f"{rise}; solved in {answer.solve_seconds * 1000:.0f} ms"
    )
