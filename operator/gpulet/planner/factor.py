"""The highest common factor of all rates on the GPUs there are, by bisection.

What fits at a factor fits at every lower one; a method that is not exact may be off by a little at the boundary, so
the highest factor that was seen to fit is kept, not the last that was tried.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gpulet.model.plan import Plan, Problem

_DOUBLINGS = 12
_LEAST = 2.0**-_DOUBLINGS
_HALVINGS = 12
_BOUND_HALVINGS = 8


def highest_factor(
    problem: Problem,
    plan: Callable[[Problem], Plan],
    fits: Callable[[Problem], bool],
    impossible: Callable[[Problem], bool],
) -> Plan:
    """``plan``: for rates as they are. ``fits``: all models find room; ``impossible``: proven that they do not."""
    floor = plan(_scaled(problem, _LEAST))
    never = {u.model for u in floor.unplaced}
    possible = replace(problem, demands=tuple(d for d in problem.demands if d.model not in never))
    if not possible.demands:
        return replace(floor, rate_factor=0.0, rate_factor_bound=0.0)
    low, high = _bracket(lambda factor: fits(_scaled(possible, factor)))
    for _ in range(_HALVINGS if high is not None else 0):
        assert high is not None
        middle = (low * high) ** 0.5
        low, high = (middle, high) if fits(_scaled(possible, middle)) else (low, middle)
    best = plan(_scaled(problem, low))
    limit = _limit(lambda factor: impossible(_scaled(possible, factor)), low)
    return replace(best, rate_factor=low, rate_factor_bound=limit)


def _bracket(fits: Callable[[float], bool]) -> tuple[float, float | None]:
    """A factor that fits and twice that, which does not; None if all that were tried fit."""
    factor = 1.0
    if fits(factor):
        for _ in range(_DOUBLINGS):
            if not fits(2 * factor):
                return factor, 2 * factor
            factor *= 2
        return factor, None
    while factor > 2 * _LEAST:
        factor /= 2
        if fits(factor):
            return factor, 2 * factor
    return _LEAST, factor


def _limit(impossible: Callable[[float], bool], low: float) -> float | None:
    """A factor above ``low`` that is proven to be too high, near the least such."""
    high = low
    for _ in range(_DOUBLINGS):
        high *= 1.25
        if impossible(high):
            break
    else:
        return None
    fits = high / 1.25
    for _ in range(_BOUND_HALVINGS):
        middle = (fits * high) ** 0.5
        if impossible(middle):
            high = middle
        else:
            fits = middle
    return high


def _scaled(problem: Problem, factor: float) -> Problem:
    demands = tuple(replace(d, requests_per_s=d.requests_per_s * factor) for d in problem.demands)
    return replace(problem, demands=demands)
