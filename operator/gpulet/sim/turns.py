"""A gpulet that several models share by duty cycle: each has one turn a cycle."""

from __future__ import annotations

import math
from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray

from gpulet.sim.arrivals import Times
from gpulet.sim.service import ServiceTimes


def turns(
    arrivals_ms: Times, cycle_ms: float, batch: int, service: ServiceTimes, normals: NDArray[np.float64] | None = None
) -> Times:
    """Latencies of one model: its turn comes at every multiple of the cycle and takes at most ``batch`` of what waits.

    Turns of other models do not matter as long as the plan gives each the time it needs.
    """
    times, draws = arrivals_ms.tolist(), None if normals is None else normals.tolist()
    latency_ms = np.empty(len(times))
    first, number = 0, 0
    while first < len(times):
        number = max(number + 1, math.ceil(times[first] / cycle_ms))
        start = number * cycle_ms
        last = bisect_right(times, start, first, min(first + batch, len(times)))
        if last == first:  # rounding of the multiple
            continue
        spent = service.time_ms(last - first, 0.0 if draws is None else draws[first])
        latency_ms[first:last] = start + spent - arrivals_ms[first:last]
        first = last
    return latency_ms
