"""What is wrong with a profile: points that cannot be true are left out, and said.

A point is a closed loop of full batches, one per instance. By Little's law its throughput times its mean latency is
then the number of requests under way: batch x instances. Measured profiles keep to it within a few percent; who
mistakes milliseconds for microseconds is off by 1,000.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import pairwise

from gpulet.model.demand import Demand
from gpulet.model.profile import ProfilePoint

_FACTOR = 30.0
"""More than noise, queues of the load generator or a mean over instances can explain; less than a unit."""
_NOISE = 0.05
_MOST_REVERSED = 0.25
"""Part of neighbouring shares of which the larger may be slower before it is said (published profiles: a tenth)."""
_FEW = 3


def fault_of(point: ProfilePoint) -> str | None:
    """Why the point cannot be true; None if it can."""
    times = (point.mean_us, point.p99_us, point.throughput_per_s)
    if not all(math.isfinite(value) and value > 0 for value in times):
        return "latency and throughput have to be positive"
    if point.batch < 1 or point.instances < 1 or not 1 <= point.compute_percent <= 100:
        return "batch and instances have to be at least 1, the percent 1 to 100"
    under_way = point.throughput_per_s * point.mean_us / 1e6
    off = under_way / (point.batch * point.instances)
    if off < 1 / _FACTOR:
        return (
            f"throughput x mean latency should be batch x instances and is {1 / off:.3g} times too small: "
            "is the latency in milliseconds instead of microseconds, or the throughput in batches?"
        )
    if off > _FACTOR:
        return (
            f"throughput x mean latency should be batch x instances and is {off:.3g} times too large: "
            "is the latency in nanoseconds instead of microseconds, or the throughput per minute?"
        )
    return None


def believable(points: Iterable[ProfilePoint]) -> tuple[ProfilePoint, ...]:
    return tuple(point for point in points if fault_of(point) is None)


def nothing_left(points: tuple[ProfilePoint, ...]) -> str | None:
    """What is wrong with a profile of which no point can be true."""
    faults = [fault for point in points if (fault := fault_of(point)) is not None]
    if not points or len(faults) < len(points):
        return None
    fault, _ = min(Counter(faults).items(), key=lambda item: (-item[1], item[0]))
    return (
        f"none of the {len(points)} points of its profile can be true: {fault} Correct the profile or measure it anew"
    )


def findings(demands: Iterable[Demand]) -> tuple[str, ...]:
    """One line per fault of profiles that can be used all the same."""
    models: dict[str, list[str]] = defaultdict(list)
    seen: dict[int, tuple[str, ...]] = {}
    for demand in demands:
        if id(demand.profile) not in seen:
            seen[id(demand.profile)] = tuple(remarks(demand.profile.points))
        for remark in seen[id(demand.profile)]:
            models[remark].append(str(demand.model))
    return tuple(f"profile of {_names(names)}: {remark}" for remark, names in sorted(models.items()))


def _names(names: list[str]) -> str:
    more = f" and {len(names) - _FEW} others" if len(names) > _FEW else ""
    return ", ".join(sorted(names)[:_FEW]) + more


def remarks(points: tuple[ProfilePoint, ...]) -> Iterable[str]:
    """One line per fault of points that can be used all the same."""
    faults = Counter(fault for point in points if (fault := fault_of(point)) is not None)
    if sum(faults.values()) < len(points):
        for fault, number in sorted(faults.items()):
            yield f"{number} of {len(points)} points are left out: {fault}"
    good = believable(points)
    pairs, slower = _neighbours(good)
    # Of few pairs one is no pattern; all of them are.
    if slower > _MOST_REVERSED * pairs and (pairs >= 4 or slower == pairs):
        yield (
            f"in {slower} of {pairs} neighbouring shares the larger is slower by more than {_NOISE:.0%}: "
            "it is noisy, measure it for longer or on an idle node"
        )
    below = sum(p.p99_us < p.mean_us * (1 - _NOISE) for p in good)
    if below:
        yield f"{below} of {len(points)} points have a p99 below their mean: the mean is taken for both"


def _neighbours(points: tuple[ProfilePoint, ...]) -> tuple[int, int]:
    """Pairs of neighbouring shares at the same batch and instances, and in how many the larger is slower."""
    rows: dict[tuple[str, str, int, int], list[ProfilePoint]] = defaultdict(list)
    for point in points:
        rows[point.product, point.mig or "", point.batch, point.instances].append(point)
    pairs = slower = 0
    for row in rows.values():
        row.sort(key=lambda p: p.compute_percent)
        for small, large in pairwise(row):
            pairs += 1
            slower += large.mean_us > small.mean_us * (1 + _NOISE)
    return pairs, slower
