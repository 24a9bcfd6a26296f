"""From the figures of a model's replicas to its rate and to a judgement of its objective. Pure."""

import math
from collections.abc import Sequence

from gpulet.api.gpulet import Gpulet
from gpulet.api.inferencemodel import InferenceModel
from gpulet.controller.observations import WINDOW_S, Observations, ReplicaFigures
from gpulet.controller.world import Key
from gpulet.status.inferencemodel import Seen


def rate_per_s(gpulets: Sequence[Gpulet], observations: Observations) -> float | None:
    """Requests a second over all replicas, leaving ones too; None if nothing was ever seen.

    What can no longer be reached counts as it was last seen (failure case J9).
    """
    figures = [observations.figures[g.key] for g in gpulets if g.key in observations.figures]
    if not figures:
        return None
    # Over one window for all: a new replica's short one beside an old one's long one would count traffic twice.
    return sum(f.requests for f in figures) / max(f.seconds for f in figures)


def is_silent(observations: Observations, key: Key) -> bool:
    """Whether a ready pod has told nothing for a whole window: what it told before is no observation any more."""
    return observations.silent_s.get(key, 0.0) > WINDOW_S


def seen(
    model: InferenceModel, gpulets: Sequence[Gpulet], planned: Sequence[Gpulet], observations: Observations
) -> Seen:
    """Rate of all replicas; latency of the worst of the ``planned`` ones, and whether they are within the objective.

    One that is being replaced is not judged.
    """
    needed = math.ceil(10 / (1 - model.spec.slo.percentile / 100))
    keys = [g.key for g in planned]
    silent = [key for key in keys if is_silent(observations, key)]
    told = [observations.figures[key] for key in keys if key not in silent and key in observations.figures]
    judges, others = _judges(told, needed)
    limit_ms = model.spec.slo.latency_milliseconds
    shown = judges or others
    return Seen(
        rate_per_s=rate_per_s(gpulets, observations),
        mean_ms=max((f.mean_ms for f in shown if f.mean_ms is not None), default=None),
        percentile_ms=max((f.percentile_ms for f in shown if f.percentile_ms is not None), default=None),
        met=_met(judges, others, needed, limit_ms),
        needed=needed,
        silent=len(silent),
        replicas=len(keys),
    )


def _judges(figures: list[ReplicaFigures], needed: int) -> tuple[list[ReplicaFigures], list[ReplicaFigures]]:
    """Replicas whose own percentile means something, and those with too few requests."""
    told = [f for f in figures if f.percentile_ms is not None]
    return [f for f in told if f.requests >= needed], [f for f in told if f.requests < needed]


def _met(judges: list[ReplicaFigures], others: list[ReplicaFigures], needed: int, limit_ms: float) -> bool | None:
    """Whether the worst replica is within the objective; None: no statement.

    Those with too few requests speak together, if they have enough together and agree: where the percentile of each
    is within (or above) a limit, so is that of all their requests. Where they differ, it could be either.
    """
    verdicts = {_is_within(f, limit_ms) for f in judges}
    together = {_is_within(f, limit_ms) for f in others}
    if len(together) == 1 and sum(f.requests for f in others) >= needed:
        verdicts |= together
    return all(verdicts) if verdicts else None


def _is_within(figures: ReplicaFigures, limit_ms: float) -> bool:
    return figures.percentile_ms is not None and figures.percentile_ms <= limit_ms
