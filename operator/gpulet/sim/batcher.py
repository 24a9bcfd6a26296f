"""Triton's dynamic batcher in front of one replica: one queue, one or more instances.

The rule (Triton's ``DynamicBatchScheduler::GetDynamicBatch``): when an instance is free and requests wait, the largest
preferred size that they fill is taken; if they fill none, what waits is taken once the oldest has waited for the queue
delay (0: at once), at most ``max_batch``. Requests that the largest preferred size leaves over wait for the next batch.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpulet.sim.arrivals import Times
from gpulet.sim.service import ServiceTimes


@dataclass(frozen=True)
class Batcher:
    max_batch: int
    instances: int = 1
    queue_delay_ms: float = 0.0
    preferred: tuple[int, ...] = ()
    """Ascending, none above ``max_batch``."""

    @property
    def largest(self) -> int:
        return self.preferred[-1] if self.preferred else self.max_batch


@dataclass(frozen=True)
class Served:
    latency_ms: Times
    """From arrival to the end of the request's batch, in order of arrival."""
    batches: NDArray[np.int64]
    """Sizes, in order of start."""
    busy_ms: float
    """Time that instances were at work, summed."""


def serve(
    arrivals_ms: Times, batcher: Batcher, service: ServiceTimes, normals: NDArray[np.float64] | None = None
) -> Served:
    """Every request is served, in order of arrival. ``normals``: one draw a batch (``ServiceTimes.factors``)."""
    if not len(arrivals_ms):
        return Served(np.empty(0), np.empty(0, dtype=np.int64), 0.0)
    if normals is None:
        normals = np.zeros(len(arrivals_ms))
    if batcher.largest == 1 and batcher.instances == 1:
        return _one_by_one(arrivals_ms, service, normals)
    times, draws = arrivals_ms.tolist(), normals.tolist()
    at_once = batcher.queue_delay_ms == 0 and not batcher.preferred
    ends, sizes, busy_ms = (_at_once if at_once else _waiting)(times, batcher, service, draws)
    counts = np.asarray(sizes, dtype=np.int64)
    return Served(np.repeat(np.asarray(ends), counts) - arrivals_ms, counts, busy_ms)


def _one_by_one(arrivals_ms: Times, service: ServiceTimes, normals: NDArray[np.float64]) -> Served:
    """Lindley's recursion: with S the summed work before a request, it starts at S + max over earlier (arrival - S)."""
    sigma = service.sigma[0]
    work = service.mean_ms[0] * np.exp(sigma * normals[: len(arrivals_ms)] - sigma * sigma / 2)
    done = np.cumsum(work)
    before = done - work
    ends = done + np.maximum.accumulate(arrivals_ms - before)
    return Served(ends - arrivals_ms, np.ones(len(work), dtype=np.int64), float(done[-1]))


Loop = tuple[list[float], list[int], float]


def _at_once(times: list[float], batcher: Batcher, service: ServiceTimes, draws: list[float]) -> Loop:
    """No queue delay and no preferred size: a free instance takes what waits."""
    most, free = batcher.max_batch, [0.0] * batcher.instances
    mean, work = (0.0, *service.mean_ms), _time_of(service)
    constant = not any(service.sigma)
    ends: list[float] = []
    sizes: list[int] = []
    first, number, busy_ms = 0, len(times), 0.0
    while first < number:
        start = max(free[0], times[first])
        last = bisect_right(times, start, first + 1, min(first + most, number))
        size = last - first
        spent = mean[size] if constant else work(size, draws[len(sizes)])
        heapq.heapreplace(free, start + spent)
        ends.append(start + spent)
        sizes.append(size)
        busy_ms += spent
        first = last
    return ends, sizes, busy_ms


def _waiting(times: list[float], batcher: Batcher, service: ServiceTimes, draws: list[float]) -> Loop:
    """Queue delay and preferred sizes."""
    free, work = [0.0] * batcher.instances, _time_of(service)
    ends: list[float] = []
    sizes: list[int] = []
    first, busy_ms = 0, 0.0
    while first < len(times):
        start, size = _taken(times, first, free[0], batcher)
        spent = work(size, draws[len(sizes)])
        heapq.heapreplace(free, start + spent)
        ends.append(start + spent)
        sizes.append(size)
        busy_ms += spent
        first += size
    return ends, sizes, busy_ms


def _taken(times: list[float], first: int, free_ms: float, batcher: Batcher) -> tuple[float, int]:
    """When the next batch starts, and its size."""
    now = max(free_ms, times[first])
    deadline = times[first] + batcher.queue_delay_ms
    goals = batcher.preferred or (batcher.max_batch,)
    while True:
        there = bisect_right(times, now, first + 1, min(first + batcher.largest, len(times))) - first
        filled = [goal for goal in goals if goal <= there]
        exceeded = batcher.queue_delay_ms > 0 and now >= deadline
        if filled and not exceeded:
            return now, filled[-1]
        if exceeded or batcher.queue_delay_ms == 0 or there >= batcher.largest:
            return now, there
        wanted = first + goals[len(filled)] - 1
        now = min(deadline, times[wanted] if wanted < len(times) else math.inf)


def _time_of(service: ServiceTimes) -> Callable[[int, float], float]:
    mean = (0.0, *service.mean_ms)
    sigma = (0.0, *service.sigma)
    exp = math.exp

    def time_ms(size: int, normal: float) -> float:
        s = sigma[size]
        return mean[size] * exp(s * normal - s * s / 2)

    return time_ms
