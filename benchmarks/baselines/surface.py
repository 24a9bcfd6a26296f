"""What the baselines know of a model and of a GPU: latency over batch and share, and the sizes a GPU is cut into."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

MAX_BATCH = 32
"""Largest batch of gpu-lets (arXiv 2109.01611)."""
EPSILON = 1e-9


@dataclass(frozen=True)
class Grid:
    """The sizes of shares, and what the other part of a GPU is if one part has a size (two parts at most)."""

    sizes: tuple[int, ...]
    """Ascending; the last is the whole GPU."""
    rest: Mapping[int, int]
    """Size of one part -> largest size that fits beside it."""

    @property
    def whole(self) -> int:
        return self.sizes[-1]

    def cuts(self) -> tuple[tuple[int, ...], ...]:
        """All ways to cut one GPU that no other beats: the whole, and each pair once."""
        pairs = {tuple(sorted((size, rest))) for size, rest in self.rest.items()}
        beaten = {p for p in pairs for q in pairs if p != q and p[0] <= q[0] and p[1] <= q[1]}
        return ((self.whole,), *sorted(pairs - beaten))


MPS = Grid((20, 40, 50, 60, 80, 100), {20: 80, 40: 60, 50: 50, 60: 40, 80: 20})
"""Percent of a GPU; the shares of gpu-lets."""
MIG = Grid((1, 2, 3, 4, 7), {1: 4, 2: 4, 3: 4, 4: 3})
"""Compute slices of an A100: 4g and 3g stand side by side, 3g and 4g are the largest beside the smaller ones."""


@dataclass(frozen=True)
class Service:
    """One model: its latency objective and how long a batch takes on a share."""

    name: str
    objective_ms: float
    latencies_ms: Mapping[int, tuple[float, ...]] = field(repr=False)
    """Size -> latency of a batch of 0, 1, 2, ... requests; infinite where it does not run."""

    def latency_ms(self, size: int, batch: int) -> float:
        """Of one batch, alone on the GPU. Infinite beyond what was measured."""
        row = self.latencies_ms[size]
        return row[batch] if batch < len(row) else math.inf

    def largest_batch(self, size: int) -> int:
        """Largest batch that runs on a share of this size; 0: none."""
        row = self.latencies_ms[size]
        return max((b for b in range(1, len(row)) if math.isfinite(row[b])), default=0)


def service(name: str, objective_ms: float, points: Mapping[int, Mapping[int, float]]) -> Service:
    """From measurements: size -> {batch: ms}, linear between neighbouring batches, nothing beyond the largest."""
    return Service(name, objective_ms, {size: _dense(row) for size, row in points.items()})


def _dense(points: Mapping[int, float]) -> tuple[float, ...]:
    """Latency of every batch from 0 to the largest; below the smallest measured batch it is that one's."""
    if not points:
        return (0.0,)
    batches = sorted(b for b in points if b <= MAX_BATCH)
    row = [0.0] + [points[batches[0]]] * batches[0]
    for low, high in pairwise(batches):
        step = (points[high] - points[low]) / (high - low)
        row += [points[low] + step * (b - low) for b in range(low + 1, high + 1)]
    return tuple(row)


@dataclass(frozen=True)
class Full:
    """A share that runs one batch after the other of one model."""

    batch: int
    per_s: float


def saturated(model: Service, size: int, *, slower: float = 1.0) -> Full | None:
    """Largest batch with 2 L <= objective (a request that just missed a batch waits for one whole batch).

    Nexus section 4.1 step 1, gpu-lets step 0; ``slower``: factor on L. None: not even a batch of one.
    """
    for batch in range(model.largest_batch(size), 0, -1):
        latency_ms = slower * model.latency_ms(size, batch)
        if 2 * latency_ms <= model.objective_ms + EPSILON:
            return Full(batch, 1000 * batch / latency_ms)
    return None


@dataclass(frozen=True)
class Turn:
    """One model's part of a share: a batch in every duty cycle."""

    model: Service
    rate_per_s: float
    batch: int
    duty_ms: float


def residue(model: Service, size: int, rate_per_s: float, *, slower: float = 1.0) -> Turn | None:
    """Largest batch with L + batch / rate <= objective, and its duty cycle (Nexus section 4.1 step 2).

    A rate so low that even one request takes longer to come than the objective allows has batch 1 and a cycle of
    objective - L: the share then runs more often than it needs to. Where no batch of the rule carries the rate (a
    profile with jumps), the share runs saturated if that does. None: neither.
    """
    for batch in range(model.largest_batch(size), 0, -1):
        latency_ms, duty_ms = slower * model.latency_ms(size, batch), 1000 * batch / rate_per_s
        if batch == 1:
            duty_ms = min(duty_ms, model.objective_ms - latency_ms)
        if latency_ms + duty_ms <= model.objective_ms + EPSILON and latency_ms <= duty_ms + EPSILON:
            return Turn(model, rate_per_s, batch, duty_ms)
    full = saturated(model, size, slower=slower)
    if full is None or full.per_s < rate_per_s - EPSILON:
        return None
    return Turn(model, rate_per_s, full.batch, 1000 * full.batch / full.per_s)
