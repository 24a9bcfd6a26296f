"""Status of an InferenceModel: Profiled, Planned, Serving -> Ready; beside them ObjectiveMet and Enforced."""

from dataclasses import dataclass
from datetime import datetime

from gpulet.api.inferencemodel import (
    GpuletLine,
    InferenceModel,
    InferenceModelStatus,
    LatencyFigures,
    RateFigures,
    ReplicaCounts,
)
from gpulet.api.workload import METRICS_PORT, REPORT_PORT
from gpulet.status.conditions import Fact, conditions, find, kstatus, no, ready_from, unknown, yes
from gpulet.status.figures import rounded

# Reasons that only a change by the user (or an admin) can remove.
STALLING = frozenset(
    {
        "InvalidSpec",
        "ProfileNotFound",
        "ProfileEmpty",
        "ModelMissing",
        "ModelBroken",
        "UnsupportedFormat",
        "UnsupportedSource",
        "ObjectiveInfeasible",
        "ProfilingFailed",
        "NameTaken",
    }
)


@dataclass(frozen=True)
class Seen:
    """Rate over the window, and latency of the worst replica; None: nothing was seen."""

    rate_per_s: float | None = None
    mean_ms: float | None = None
    percentile_ms: float | None = None
    met: bool | None = None
    """Whether the percentile is within the objective; None: too few requests to say."""
    needed: int = 0
    """Requests in the window from which on the percentile means something: 10 / (1 - q)."""
    silent: int = 0
    """Ready replicas that have told nothing for a whole window, of"""
    replicas: int = 0


@dataclass(frozen=True)
class ModelFacts:
    """All that the status of a model is derived from."""

    profiled: Fact
    planned: Fact
    lines: tuple[GpuletLine, ...] = ()
    """Every share that exists, leaving ones included."""
    replicas: ReplicaCounts | None = None
    """Of the plan in force; None while nothing is planned: then what exists counts."""
    enforced: tuple[Fact, ...] = ()
    serving_error: Fact | None = None
    """What the serving pods report: a missing or broken model."""
    seen: Seen = Seen()
    planned_rate: float | None = None
    sustainable_rate: float | None = None
    predicted_ms: float | None = None
    batch: int | None = None
    url: str | None = None
    digest: str | None = None
    source_digest: str | None = None
    format: str | None = None
    tuning_job: str | None = None
    tuned: Fact | None = None
    """None: no tuning is asked for. Whatever it says, the model serves."""


def serving(facts: ModelFacts, *, served: bool = False) -> Fact:
    """Serving: every planned replica is ready, or those that they replace still serve the same spec.

    ``served``: Serving has been True since the spec was last changed. Only then do replicas of an earlier plan serve
    what is asked for now.
    """
    counts = replica_counts(facts)
    total, ready = counts.planned, counts.ready
    starting = facts.serving_error is None or facts.serving_error.reason == "Starting"
    if served and starting and ready < total <= sum(line.ready for line in facts.lines):
        return yes("Serving", "Moving", f"{ready} of {total} planned replicas ready; the replaced serve until then")
    if facts.serving_error is not None:
        return facts.serving_error
    if total == 0:
        return no("Serving", "NoReplicas", "nothing is planned yet")
    if ready < total:
        return no("Serving", "Starting", f"{ready} of {total} replicas ready")
    return yes("Serving", "AllReplicasReady")


def replica_counts(facts: ModelFacts) -> ReplicaCounts:
    """Planned replicas and those of them that are ready: a share that is being replaced counts for neither."""
    if facts.replicas is not None:
        return facts.replicas
    return ReplicaCounts(planned=len(facts.lines), ready=sum(line.ready for line in facts.lines))


def objective_met(model: InferenceModel, seen: Seen) -> Fact:
    """ObjectiveMet: the observed percentile against the objective.

    Unknown below 10/(1-q) requests in the window, and where a replica cannot be observed, for it may be the worst.
    """
    limit = model.spec.slo.latency_milliseconds
    if seen.met is False:
        return no(
            "ObjectiveMet",
            "LatencyAboveObjective",
            f"spec.slo: the p{model.spec.slo.percentile:g} of the worst replica is above {limit:g} ms",
        )
    if seen.silent:
        return unknown(
            "ObjectiveMet",
            "NotObserved",
            f"no figures from {seen.silent} of {seen.replicas} replicas: let the controller's namespace reach ports "
            f"{METRICS_PORT} and {REPORT_PORT} of the model's pods (NetworkPolicies here?)",
        )
    if seen.met is None:
        return unknown(
            "ObjectiveMet", "TooFewRequests", f"fewer than {seen.needed} requests in the window: no statement"
        )
    return yes("ObjectiveMet", "WithinObjective")


def all_enforced(parts: tuple[Fact, ...]) -> Fact:
    """Enforced for the model: the weakest of its shares decides."""
    if not parts:
        return unknown("Enforced", "NoReplicas")
    for status in ("False", "Unknown"):
        for part in parts:
            if part.status == status:
                return part
    return parts[0]


def inference_model_status(model: InferenceModel, facts: ModelFacts, *, now: datetime) -> InferenceModelStatus:
    """The whole status of an InferenceModel."""
    generation = model.metadata.generation
    before = find(model.status.conditions, "Serving")
    served = before is not None and before.status == "True" and before.observed_generation == generation
    serves = serving(facts, served=served)
    ready = ready_from([facts.profiled if not serves.true else yes("Profiled", "Serving"), facts.planned, serves])
    stalled = next((f for f in (facts.profiled, facts.planned, serves) if not f.true and f.reason in STALLING), None)
    all_facts = [
        facts.profiled,
        facts.planned,
        serves,
        ready,
        objective_met(model, facts.seen),
        all_enforced(facts.enforced),
        *([facts.tuned] if facts.tuned is not None else []),
        *kstatus(ready, stalled=None if ready.true else stalled),
    ]
    return InferenceModelStatus(
        observed_generation=generation,
        conditions=conditions(model.status.conditions, all_facts, generation=generation, now=now),
        replicas=replica_counts(facts),
        rate=RateFigures(
            planned=rounded(facts.planned_rate),
            sustainable=rounded(facts.sustainable_rate),
            observed=rounded(facts.seen.rate_per_s),
        ),
        latency=LatencyFigures(
            predicted_milliseconds=rounded(facts.predicted_ms),
            observed_mean_milliseconds=rounded(facts.seen.mean_ms),
            observed_percentile_milliseconds=rounded(facts.seen.percentile_ms),
        ),
        batch=facts.batch,
        url=facts.url,
        model_digest=facts.digest,
        source_digest=facts.source_digest,
        serving_format=facts.format,  # type: ignore[arg-type]  # a Literal that the caller read from the spec
        tuning_job=facts.tuning_job,
        gpulets=list(facts.lines),
    )
