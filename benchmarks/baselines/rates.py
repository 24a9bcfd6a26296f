"""The highest rate that a planner without monotone answers can serve: found by scanning, not by bisection.

Planners that share time greedily may serve a rate and not a lower one (gpu-lets' own program does): a bisection would
stop at whatever edge it meets first.
"""

from __future__ import annotations

import math
from collections.abc import Callable


def peak(serves: Callable[[float], bool], *, most: float, step: float = 1.05, fine: int = 4) -> float:
    """Largest factor up to ``most`` that is served, on a grid with ratio ``step``, refined above the last hit.

    Scans from the top downwards, so that a hole below does not matter, then ``fine`` bisections up to the next grid
    point. 0: none down to a hundredth of ``most``.
    """
    factor = most
    while factor > most / 100:
        if serves(factor):
            return _refined(serves, factor, min(most, factor * step), fine)
        factor /= step
    return 0.0


def _refined(serves: Callable[[float], bool], low: float, high: float, times: int) -> float:
    for _ in range(times):
        middle = math.sqrt(low * high)
        if serves(middle):
            low = middle
        else:
            high = middle
    return low


def poisson_quantile(mean: float, quantile: float = 0.99) -> int:
    """Smallest k with P(Poisson(mean) <= k) >= quantile: gpu-lets plans for this many requests per second."""
    k, log_term, total = 0, -mean, math.exp(-mean)
    while total < quantile:
        k += 1
        log_term += math.log(mean) - math.log(k)
        total += math.exp(log_term)
    return k
