"""When requests come: times in milliseconds, ascending, from a seeded generator."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.float64]


def poisson(chance: np.random.Generator, per_s: float, requests: int) -> Times:
    """Independent callers: exponential gaps."""
    return np.cumsum(chance.exponential(1000 / per_s, requests))


def bursty(
    chance: np.random.Generator,
    per_s: float,
    requests: int,
    *,
    peak: float = 2.0,
    peak_part: float = 0.2,
    peak_ms: float = 1000.0,
) -> Times:
    """A Poisson process whose rate switches between two values (MMPP-2), ``per_s`` on average.

    ``peak``: rate in a burst, as a multiple of the mean; ``peak_part``: part of the time that is burst; ``peak_ms``:
    mean length of a burst (lengths are exponential). Outside bursts the rate is what keeps the mean.
    """
    if not 0 < peak_part < 1 or peak * peak_part >= 1:
        raise ValueError(f"peak {peak:g} x peak_part {peak_part:g} has to stay below 1: else nothing is left outside")
    calm = (1 - peak * peak_part) / (1 - peak_part)
    calm_ms = peak_ms * (1 - peak_part) / peak_part
    # A Poisson process of rate 1 runs in operational time: each stretch of real time stretches by its rate.
    stretches = max(4, int(4 * requests * 1000 / per_s / (peak_ms + calm_ms)) + 8)
    lengths = chance.exponential(1.0, (stretches, 2)) * (calm_ms, peak_ms)
    first_calm = chance.random() >= peak_part
    rates = np.array([calm, peak]) * per_s / 1000
    if not first_calm:
        lengths, rates = lengths[:, ::-1], rates[::-1]
    real = np.concatenate([[0.0], np.cumsum(lengths.ravel())])
    operational = np.concatenate([[0.0], np.cumsum((lengths * rates).ravel())])
    times = np.cumsum(chance.exponential(1.0, requests))
    times = times[times < operational[-1]]
    found: Times = np.interp(times, operational, real)
    return found


def recorded(timestamps_ms: Sequence[float] | Times, *, per_s: float | None = None) -> Times:
    """A recorded trace from its first request on; ``per_s``: stretched or squeezed to that mean rate."""
    times: Times = np.sort(np.asarray(timestamps_ms, dtype=np.float64))
    if len(times) < 2 or times[-1] <= times[0]:
        raise ValueError("recorded arrivals: give at least two requests at different times, in milliseconds")
    times -= times[0]
    if per_s is not None:
        times *= (len(times) - 1) / per_s * 1000 / times[-1]
    return times


def split(chance: np.random.Generator, times: Times, weights: Sequence[float], *, in_turn: bool = False) -> list[Times]:
    """The streams of the replicas behind one address.

    A Service picks a replica at random for each request (``weights``: even or by planned rate). ``in_turn``: a proxy
    that goes round by weight (smooth weighted round robin), which evens arrivals out.
    """
    parts = np.asarray(weights, dtype=np.float64) / float(np.sum(weights))
    if len(parts) == 1:
        return [times]
    if not in_turn:
        chosen = chance.choice(len(parts), size=len(times), p=parts)
    else:
        # Of the next slots in fractional order (n + 1/2) / part, the first len(times): round robin by weight.
        slots = [(np.arange(int(np.ceil(len(times) * p)) + 1) + 0.5) / p for p in parts]
        owner = np.concatenate([np.full(len(s), i) for i, s in enumerate(slots)])
        chosen = owner[np.argsort(np.concatenate(slots), kind="stable")][: len(times)]
    return [times[chosen == i] for i in range(len(parts))]
