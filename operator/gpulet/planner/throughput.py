"""From a profile to what one replica can do on each kind of share: the table T.

Latency rules, by name (``PlannerPolicy.latency_rule``). L: latency of one full batch, with the interference margin
where neighbours are possible (a share below 100 % of a device that is not the model's alone).

- ``backlog`` (default): mean of the running batch + mean of the m batches that may pass before one's own + p99 of one's
  own <= objective; the share may be loaded as far as m holds with the objective's probability (``queueing``).
  At a low rate m is 0, and nobody ever waits for a batch to fill: the queue delay is 0.
- ``half``: 2 x p99 <= objective, loaded to 100 %: the rule of gpu-lets (arXiv 2109.01611), for comparisons. It ignores
  queueing, so that the predicted figure is missed at high load.
- ``parvagpu``: p99 < 0.9 x objective / 2, strictly, loaded to 100 %: the rule of ParvaGPU (SC'24), for comparisons.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace

from gpulet.model.demand import Demand
from gpulet.model.plan import LatencyRule, PlannerPolicy
from gpulet.model.profile import ProfilePoint
from gpulet.planner.queueing import MAX_SPARE_BATCHES, max_load, spare_batches_at
from gpulet.planner.sanity import believable


@dataclass(frozen=True, order=True)
class Option:
    """One way to serve a model: every replica on such a share, with such a batch."""

    product: str
    mig: str
    """MIG profile; empty: a share of a whole GPU."""
    percent: int
    batch: int
    instances: int
    memory_mib: int
    """Of one replica, in equal parts for its clients."""
    mean_ms: float
    p99_ms: float
    """Of one batch, margin included."""
    full_per_s: float
    """Throughput of one replica whose batches are always full, margin included."""
    replica_per_s: float
    """Rate that one replica sustains under the latency rule."""
    replicas: int
    """Replicas that carry the planned rate, each the same part of it."""

    @property
    def clients(self) -> int:
        return self.instances


def surface(points: tuple[ProfilePoint, ...]) -> tuple[ProfilePoint, ...]:
    """The points that can be true, made monotone: a share is at least as good as any smaller one that was measured.

    Noise makes larger shares look slower in about one of ten neighbouring pairs of published profiles.
    """
    by_configuration: dict[tuple[str, str, int, int], list[ProfilePoint]] = defaultdict(list)
    for point in believable(points):
        by_configuration[point.product, point.mig or "", point.batch, point.instances].append(point)
    result = []
    for key in sorted(by_configuration):
        best: ProfilePoint | None = None
        for point in sorted(by_configuration[key], key=lambda p: (p.compute_percent, p.p99_us, p.mean_us)):
            best = point if best is None else _at_least(point, best)
            result.append(best)
    return tuple(result)


def _at_least(point: ProfilePoint, smaller: ProfilePoint) -> ProfilePoint:
    return replace(
        point,
        mean_us=min(point.mean_us, smaller.mean_us),
        p50_us=min(point.p50_us, smaller.p50_us),
        p99_us=min(point.p99_us, smaller.p99_us),
        throughput_per_s=max(point.throughput_per_s, smaller.throughput_per_s),
        memory_mib=max(point.memory_mib, smaller.memory_mib),
    )


def usable_points(demand: Demand) -> tuple[ProfilePoint, ...]:
    """Monotone points of the modes and the batch that the model allows."""
    return tuple(p for p in surface(demand.profile.points) if _allowed(demand, p))


def _allowed(demand: Demand, point: ProfilePoint) -> bool:
    if demand.fixed_batch is not None and point.batch != demand.fixed_batch:
        return False
    if demand.products is not None and point.product not in demand.products:
        return False
    if point.compute_percent < point.instances:
        return False  # every client gets at least one percent
    if point.mig is not None:
        return demand.mode in ("Auto", "MIG")
    return demand.mode in ("Auto", "MPS") or (demand.mode == "Exclusive" and point.compute_percent == 100)


def option_of(demand: Demand, point: ProfilePoint, policy: PlannerPolicy) -> Option | None:
    """What one replica does at this point; None if it misses the objective even without load."""
    shared = point.mig is None and point.compute_percent < 100 and demand.isolation != "None"
    slower = 1 + policy.interference_margin if shared else 1.0
    full_per_s = point.throughput_per_s / slower
    mean_ms, p99_ms = point.mean_us * slower / 1000, max(point.p99_us, point.mean_us) * slower / 1000
    load = _load(policy.latency_rule, demand, mean_ms, p99_ms, point.batch * point.instances)
    if load <= 0 or full_per_s <= 0:
        return None
    replica_per_s = full_per_s * load
    return Option(
        product=point.product,
        mig=point.mig or "",
        # In a placement the replica is alone: it takes all of it, whatever part was measured.
        percent=100 if point.mig is not None else point.compute_percent,
        batch=point.batch,
        instances=point.instances,
        memory_mib=-(-max(1, point.memory_mib) // point.instances) * point.instances,
        mean_ms=mean_ms,
        p99_ms=p99_ms,
        full_per_s=full_per_s,
        replica_per_s=replica_per_s,
        replicas=max(1, math.ceil(demand.requests_per_s / replica_per_s - 1e-9)),
    )


PARVAGPU_PART = 0.9
"""The part of the objective that ParvaGPU plans for."""


def unloaded_ms(rule: LatencyRule, mean_ms: float, p99_ms: float) -> float:
    """The objective that a share can just meet, at a very low rate."""
    if rule == "parvagpu":
        return 2 * p99_ms / PARVAGPU_PART
    return mean_ms + p99_ms if rule == "backlog" else 2 * p99_ms


def _load(rule: LatencyRule, demand: Demand, mean_ms: float, p99_ms: float, capacity: int) -> float:
    spare_ms = demand.latency_ms - unloaded_ms(rule, mean_ms, p99_ms)
    if rule == "parvagpu":
        return 1.0 if spare_ms > 1e-9 * demand.latency_ms else 0.0  # strictly below
    if spare_ms < -1e-9:
        return 0.0
    if rule == "half":
        return 1.0
    spare = min(MAX_SPARE_BATCHES, int(spare_ms / mean_ms + 1e-9)) if mean_ms > 0 else MAX_SPARE_BATCHES
    return max_load(capacity, spare, demand.percentile / 100)


def predicted_ms(option: Option, demand: Demand, rule: LatencyRule, *, replicas: int) -> float:
    """Latency of the objective's percentile at the planned rate, by the same rule that chose the share."""
    if rule != "backlog":
        return unloaded_ms(rule, option.mean_ms, option.p99_ms)
    load = demand.requests_per_s / replicas / option.full_per_s
    spare = spare_batches_at(load, option.batch * option.instances, demand.percentile / 100)
    batches = (MAX_SPARE_BATCHES if spare is None else spare) + 1
    return batches * option.mean_ms + option.p99_ms


def options_of(demand: Demand, policy: PlannerPolicy) -> tuple[Option, ...]:
    """All ways to serve the model that no other beats in every respect, in a fixed order."""
    found = [o for p in usable_points(demand) if (o := option_of(demand, p, policy)) is not None]
    # At equal needs the lower latency stays, hence the smaller batch.
    found.sort(key=lambda o: (o.product, o.mig, o.percent, o.replicas, o.memory_mib, o.clients, o.p99_ms, o))
    kept: list[Option] = []
    for option in found:
        if not any(_needs_no_more(other, option) for other in kept):
            kept.append(option)
    return tuple(kept)


def _needs_no_more(a: Option, b: Option) -> bool:
    return (
        (a.product, a.mig) == (b.product, b.mig)
        and a.percent <= b.percent
        and a.replicas <= b.replicas
        and a.memory_mib <= b.memory_mib
        and a.clients <= b.clients
    )
