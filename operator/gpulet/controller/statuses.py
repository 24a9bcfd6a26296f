"""From what a pass knows to the statuses of InferenceModels and Gpulets. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from gpulet.api import names
from gpulet.api.gpulet import Gpulet
from gpulet.api.inferencemodel import GpuletLine, InferenceModel, ReplicaCounts
from gpulet.build.service import model_url
from gpulet.controller.actions import Action, WriteStatus
from gpulet.controller.faults import apart
from gpulet.controller.observations import Observations
from gpulet.controller.observed import is_silent, seen
from gpulet.controller.profiles import Choice
from gpulet.controller.words import last_words
from gpulet.controller.world import Key, World, is_planned
from gpulet.model.demand import ModelId
from gpulet.model.plan import Placed, Plan, Unplaced
from gpulet.status.conditions import Fact, no, yes
from gpulet.status.gpulet import Observed, enforced, gpulet_status, node_refusal, pod_ready, waiting_reason
from gpulet.status.inferencemodel import ModelFacts, inference_model_status

_MODEL_FAULTS = ("ModelMissing", "ModelBroken", "UnsupportedFormat")


@dataclass(frozen=True)
class Known:
    """The results of a pass that statuses are made from."""

    world: World
    plan: Plan
    choices: Mapping[Key, Choice]
    rates_per_s: Mapping[Key, float]
    observations: Observations
    desired: frozenset[Key] = frozenset()
    """Gpulets of the plan, whether they exist yet or not."""
    planned: Mapping[ModelId, int] = field(default_factory=dict)
    """How many of them each model has."""
    waiting: Mapping[ModelId, str] = field(default_factory=dict)
    refused: Mapping[ModelId, str] = field(default_factory=dict)
    """The scheduler's (or a quota's) own words for models that were refused somewhere."""
    names_taken: Mapping[Key, str] = field(default_factory=dict)
    """Models without a Service, for somebody else's bears the name."""
    tuned: Mapping[Key, Fact] = field(default_factory=dict)
    """How far the tuning is of models that ask for it."""


def model_statuses(known: Known, *, now: datetime) -> list[Action]:
    """The status of every InferenceModel."""
    placed = {p.model: p for p in known.plan.placed}
    unplaced = {u.model: u for u in known.plan.unplaced}

    def one(model: InferenceModel) -> list[Action]:
        model_id = ModelId(*model.key)
        facts = _facts(known, model, placed.get(model_id), unplaced.get(model_id))
        status = inference_model_status(model, facts, now=now)
        return [WriteStatus("InferenceModel", model.key, status.to_dict())]

    return apart([model for _, model in sorted(known.world.models.items())], one, now=now)


def _facts(known: Known, model: InferenceModel, placed: Placed | None, unplaced: Unplaced | None) -> ModelFacts:
    namespace, name = model.key
    choice = known.choices[model.key]
    gpulets = known.world.gpulets_of(names.LABEL_MODEL, namespace, name)
    lines = tuple(_line(known.world, g) for g in gpulets)
    wanted = [g for g in gpulets if g.key in known.desired]
    planned = known.planned.get(ModelId(namespace, name), 0)
    ready = sum(pod_ready(known.world.pods.get(g.key)) for g in wanted)
    job = choice.job.metadata.name if choice.job is not None else None
    return ModelFacts(
        profiled=choice.profiled,
        planned=_planned(known, model, placed, unplaced),
        lines=lines,
        replicas=ReplicaCounts(planned=planned, ready=ready) if planned else None,
        enforced=tuple(enforced(known.world.claims.get(g.key)) for g in gpulets),
        serving_error=_serving_error(known, model.key, wanted or gpulets),
        seen=seen(model, gpulets, wanted or gpulets, known.observations),
        planned_rate=known.rates_per_s.get(model.key),
        sustainable_rate=placed.sustainable_per_s if placed else None,
        predicted_ms=placed.predicted_latency_ms if placed else None,
        batch=placed.slots[0].batch if placed else None,
        url=model_url(namespace, name),
        digest=_digest(known, gpulets),
        source_digest=_source_digest(known, gpulets) or model.status.source_digest,
        format=choice.source.format,
        tuning_job=job,
        tuned=known.tuned.get(model.key),
    )


def _planned(known: Known, model: InferenceModel, placed: Placed | None, unplaced: Unplaced | None) -> Fact:
    model_id = ModelId(*model.key)
    if unplaced is not None:
        return no("Planned", unplaced.reason, unplaced.message)
    if placed is None and model_id in known.refused:
        return no(
            "Planned", "Refused", f"what exists stays as it is, nothing more is admitted: {known.refused[model_id]}"
        )
    if placed is None:
        return no("Planned", "NotProfiled", "it is planned as soon as it has a profile")
    if model_id in known.waiting:
        return no("Planned", "WaitingForRoom", known.waiting[model_id])
    if message := known.refused.get(model_id):
        return yes("Planned", "Moved", f"{placed.reason}; the scheduler refused another place: {message}")
    return yes("Planned", "Fits", placed.reason)


def _line(world: World, gpulet: Gpulet) -> GpuletLine:
    device = gpulet.spec.device
    return GpuletLine(
        name=gpulet.metadata.name,
        node=device.node,
        gpu=device.gpu,
        mig=device.mig.profile if device.mig else None,
        compute_percent=gpulet.spec.compute_percent,
        ready=pod_ready(world.pods.get(gpulet.key)),
    )


def _serving_error(known: Known, model: Key, gpulets: list[Gpulet]) -> Fact | None:
    """A missing or broken model as the serving programs report it (over HTTP, or in their last words); no Service."""
    for gpulet in gpulets:
        report = known.observations.reports.get(gpulet.key)
        if report is None or not report.error:
            report = last_words(known.world.pods.get(gpulet.key))
        if report is not None and report.error:
            # A reason is a word of ours: what a pod says is a user's, and of any version.
            return no("Serving", report.reason if report.reason in _MODEL_FAULTS else "ModelBroken", report.error)
    if model in known.names_taken:
        return no("Serving", "NameTaken", known.names_taken[model])
    if all(pod_ready(known.world.pods.get(g.key)) for g in gpulets):
        return None
    words = {
        node_refusal(known.world.claims.get(g.key)) or waiting_reason(known.world.pods[g.key])
        for g in gpulets
        if g.key in known.world.pods
    }
    words -= {""}
    return no("Serving", "Starting", "; ".join(sorted(words))) if words else None


def _digest(known: Known, gpulets: list[Gpulet]) -> str | None:
    for gpulet in gpulets:
        report = known.observations.reports.get(gpulet.key)
        if report is not None and report.models:
            return report.models[0].digest
    return None


def _source_digest(known: Known, gpulets: list[Gpulet]) -> str | None:
    for gpulet in gpulets:
        report = known.observations.reports.get(gpulet.key)
        found = report.models[0].source_digest if report is not None and report.models else None
        if found is not None:
            return found
    return None


def gpulet_statuses(known: Known, *, now: datetime) -> list[Action]:
    """The status of every Gpulet, manual ones included."""
    placed = {p.model: p for p in known.plan.placed}

    def one(gpulet: Gpulet) -> list[Action]:
        key = gpulet.key
        plan = None
        if gpulet.spec.models and is_planned(gpulet):
            plan = placed.get(ModelId(key[0], gpulet.spec.models[0].name))
        silent = is_silent(known.observations, key)
        figures = None if silent else known.observations.figures.get(key)
        rate = known.rates_per_s.get((plan.model.namespace, plan.model.name)) if plan else None
        observed = Observed(
            claim=known.world.claims.get(key),
            pod=known.world.pods.get(key),
            planned_rate=rate / len(plan.slots) if plan and rate is not None else None,
            predicted_latency_ms=plan.predicted_latency_ms if plan else None,
            observed_latency_ms=figures.percentile_ms if figures else None,
        )
        return [WriteStatus("Gpulet", key, gpulet_status(gpulet, observed, now=now).to_dict())]

    return apart([g for _, g in sorted(known.world.gpulets.items())], one, now=now)
