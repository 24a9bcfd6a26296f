"""Whether a tuned artifact is adopted. Pure."""

import statistics
from dataclasses import dataclass

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
