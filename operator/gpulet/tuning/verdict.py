"""Whether a tuned artifact is right, and whether it is adopted. Pure."""

import math
import statistics
from dataclasses import dataclass
from typing import Any

LEAST_GAIN = 0.03
"""Below this a win is within what any two builds differ by."""


@dataclass(frozen=True)
class Timing:
    """Mean milliseconds a batch of each round; rounds of all candidates alternate."""

    rounds_ms: tuple[float, ...]

    @property
    def median_ms(self) -> float:
        return statistics.median(self.rounds_ms)

    @property
    def spread(self) -> float:
        """Half the range between the quartiles, relative to the median."""
        if len(self.rounds_ms) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.rounds_ms, n=4)
        return (high - low) / 2 / self.median_ms


def adopted(before: Timing, after: Timing) -> bool:
    """The tuned artifact wins if its gain is larger than the spread of both measurements and than LEAST_GAIN."""
    gain = 1 - after.median_ms / before.median_ms
    return gain > max(LEAST_GAIN, before.spread + after.spread)


def absolute_difference(ours: list[Any], theirs: list[Any]) -> float:
    """The largest, over outputs given as numpy arrays; infinite for another shape or a value that is no number."""
    return max((_difference(a, b) for a, b in zip(ours, theirs, strict=True)), default=0.0)


def relative_difference(ours: list[Any], theirs: list[Any]) -> float:
    """As ``absolute_difference``, each output's divided by the largest value of ``theirs``: sums of one output share
    a scale, single values near 0 have none."""
    pairs = zip(ours, theirs, strict=True)
    return max((_difference(a, b) / max(_largest(b), 1e-6) for a, b in pairs), default=0.0)


def _difference(ours: Any, theirs: Any) -> float:
    if ours.shape != theirs.shape:
        return math.inf
    # Comparisons with NaN are false: one that spread through a tuned operator must not pass for a small difference.
    difference = _largest(ours.astype("float64") - theirs.astype("float64"))
    return difference if math.isfinite(difference) else math.inf


def _largest(values: Any) -> float:
    return float(abs(values).max()) if values.size else 0.0
