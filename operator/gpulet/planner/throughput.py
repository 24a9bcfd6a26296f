"""From a profile to what one replica can do on each kind of share: the table T.

Latency rules, by name (``PlannerPolicy.latency_rule``). L: latency of one full batch, with the interference margin
where neighbours are possible (a share below 100 % of a device that is not the model's alone).

- ``backlog`` (default): the replica may be loaded as far as the objective's percentile of latency, queueing and
  batching included, stays within the objective (``queueing``: the exact chain of Triton's queue without delay). Batches
  then are as large as the load asks for; the planned batch only bounds them.
- ``half``: 2 x p99 <= objective, loaded to 100 %: the rule of gpu-lets (arXiv 2109.01611), for comparisons. It ignores
  queueing, so that the predicted figure is missed at high load.
- ``duty``: p99 + the longer of p99 and the time in which a batch's requests arrive <= objective, loaded to 100 %: the
  duty cycle of gpu-lets and Nexus (L + d <= SLO), for comparisons. At a rate too low for that a batch of one is taken.
- ``parvagpu``: p99 < 0.9 x objective / 2, strictly, loaded to 100 %: the rule of ParvaGPU (SC'24), for comparisons.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from gpulet.model.demand import Demand
from gpulet.model.plan import LatencyRule, PlannerPolicy
from gpulet.model.profile import ProfilePoint
from gpulet.planner.queueing import latency, max_load
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
    fixed: float = 1.0
    """Part of a full batch's time that even an empty one would take, 0 to 1: the smaller, the faster small batches."""

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


def option_of(demand: Demand, point: ProfilePoint, policy: PlannerPolicy, fixed: float | None = None) -> Option | None:
    """What one replica does at this point under the latency rule; None if it misses the objective even without load.

    ``fixed``: of ``Option``, if the caller knows it (``fixed_parts``); else found in the profile.
    """
    option = unlimited(demand, point, policy, fixed)
    load = _load(policy.latency_rule, demand, option) if option.full_per_s > 0 else 0.0
    if load <= 0:
        return None
    replica_per_s = option.full_per_s * load
    replicas = max(1, math.ceil(demand.requests_per_s / replica_per_s - 1e-9))
    return replace(option, replica_per_s=replica_per_s, replicas=replicas)


def unlimited(demand: Demand, point: ProfilePoint, policy: PlannerPolicy, fixed: float | None = None) -> Option:
    """One replica at this point that runs full batches, whatever the objective."""
    shared = point.mig is None and point.compute_percent < 100 and demand.isolation != "None"
    slower = _slower(demand, point, policy) if shared else 1.0
    if fixed is None:
        fixed = _fixed_part(demand, point, surface(demand.profile.points))
    return Option(
        product=point.product,
        mig=point.mig or "",
        # In a placement the replica is alone: it takes all of it, whatever part was measured.
        percent=100 if point.mig is not None else point.compute_percent,
        batch=point.batch,
        instances=point.instances,
        memory_mib=-(-max(1, point.memory_mib) // point.instances) * point.instances,
        mean_ms=point.mean_us * slower / 1000,
        p99_ms=max(point.p99_us, point.mean_us) * slower / 1000,
        full_per_s=point.throughput_per_s / slower,
        replica_per_s=point.throughput_per_s / slower,
        replicas=1,
        fixed=fixed,
    )


def _slower(demand: Demand, point: ProfilePoint, policy: PlannerPolicy) -> float:
    for product, percent, factor in demand.slowdowns:
        if (product, percent) == (point.product, point.compute_percent):
            return factor
    return 1 + policy.interference_margin


def fixed_parts(demand: Demand, points: Iterable[ProfilePoint]) -> dict[ProfilePoint, float]:
    """``Option.fixed`` of every point, from the others of its share."""
    series: dict[tuple[str, str, int, int], list[ProfilePoint]] = defaultdict(list)
    for point in points:
        series[point.product, point.mig or "", point.compute_percent, point.instances].append(point)
    return {point: _fixed_part(demand, point, same) for same in series.values() for point in same}


def _fixed_part(demand: Demand, point: ProfilePoint, points: Iterable[ProfilePoint]) -> float:
    """The least with which a line to the full batch is above the times of all smaller ones.

    Below the smallest measured batch a request takes as long as that; a tuned artifact always runs its full batch.
    """
    share = (point.product, point.mig, point.compute_percent, point.instances)
    smaller = sorted(
        (p.batch, p.mean_us)
        for p in points
        if p.batch < point.batch and (p.product, p.mig, p.compute_percent, p.instances) == share
    )
    if demand.fixed_batch is not None or not smaller:
        return 1.0
    found = 0.0
    for batch, mean_us in ((1, smaller[0][1]), *smaller):
        part, size = mean_us / point.mean_us, batch / point.batch
        found = max(found, (part - size) / (1 - size))
    return min(1.0, found)


PARVAGPU_PART = 0.9
"""The part of the objective that ParvaGPU plans for."""
_LEAST_LOAD = 0.01
"""A replica that may not even be loaded this far does not meet the objective: no number of replicas would help."""


def unloaded_ms(rule: LatencyRule, option: Option, quantile: float) -> float:
    """The objective that a share can just meet, at a very low rate."""
    if rule == "parvagpu":
        return 2 * option.p99_ms / PARVAGPU_PART
    return _latency_ms(option, _LEAST_LOAD, quantile) if rule == "backlog" else 2 * option.p99_ms


def _batch_ms(option: Option) -> float:
    """Time of a full batch; what a client takes between batches of a closed loop counts as its part."""
    return max(option.mean_ms, option.batch * option.instances * 1000 / option.full_per_s)


def _latency_ms(option: Option, load: float, quantile: float) -> float:
    spread = option.p99_ms / option.mean_ms
    batches = latency(option.batch, option.instances, option.fixed, spread, load, quantile)
    return batches * _batch_ms(option)


def _load(rule: LatencyRule, demand: Demand, option: Option) -> float:
    if rule == "backlog":
        spread, patience = option.p99_ms / option.mean_ms, demand.latency_ms / _batch_ms(option)
        quantile = demand.percentile / 100
        load = max_load(option.batch, option.instances, option.fixed, spread, patience + 1e-9, quantile)
        return load if load >= _LEAST_LOAD else 0.0
    spare_ms = demand.latency_ms - _rule_ms(rule, option, demand.requests_per_s)
    if rule == "parvagpu":
        return 1.0 if spare_ms > 1e-9 * demand.latency_ms else 0.0  # strictly below
    return 1.0 if spare_ms >= -1e-9 else 0.0


def _rule_ms(rule: LatencyRule, option: Option, model_per_s: float) -> float:
    """What a rule that knows no queue takes the latency for."""
    if rule != "duty" or option.batch == 1 or model_per_s <= 0:
        return unloaded_ms(rule, option, 0.99)
    replicas = max(1, math.ceil(model_per_s / option.full_per_s - 1e-9))
    collect_ms = option.batch * 1000 * replicas / model_per_s
    return option.p99_ms + max(option.p99_ms, collect_ms)


def predicted_ms(option: Option, demand: Demand, rule: LatencyRule, *, replicas: int) -> float:
    """Latency of the objective's percentile at the planned rate, by the same rule that chose the share."""
    if rule != "backlog":
        return _rule_ms(rule, option, demand.requests_per_s)
    load = demand.requests_per_s / replicas / option.full_per_s
    return _latency_ms(option, load, demand.percentile / 100)


def options_of(demand: Demand, policy: PlannerPolicy) -> tuple[Option, ...]:
    """All ways to serve the model that no other beats in every respect, in a fixed order."""
    points = usable_points(demand)
    fixed = fixed_parts(demand, points)
    found = [o for p in points if (o := option_of(demand, p, policy, fixed[p])) is not None]
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
