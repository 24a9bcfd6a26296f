"""The abstraction of gpu-lets (arXiv 2109.01611; ATC'22): shares of a GPU, and which of them a model needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.baselines.surface import EPSILON, Grid, Service, Turn, residue, saturated

Slowdown = Callable[[Service, int, int, Service, int, int], float]
"""(model, batch, size, neighbour's model, batch, size) -> factor >= 1 on the model's latency."""


def alone(me: Service, batch: int, size: int, other: Service, other_batch: int, other_size: int) -> float:
    """No interference."""
    return 1.0


@dataclass(frozen=True)
class Rules:
    """Constants of the paper's program, and what it is told."""

    slowdown: Slowdown = alone
    slack_per_s: float = 15.0
    """A rate left over up to this counts as served."""
    gain: float = 1.05
    """A larger share has to give at least this much more throughput to be looked at."""
    models_a_share: int = 3
    whole_first: bool = True
    """An uncut GPU is preferred to a fitting part, as in the authors' program: it spreads. False: true best fit."""
    rounds: int = 6
    """How often a rate lost to a neighbour is placed again."""


@dataclass(frozen=True)
class Share:
    """A gpu-let."""

    size: int
    turns: tuple[Turn, ...] = ()

    @property
    def duty_ms(self) -> float:
        return self.turns[0].duty_ms

    def busy(self, slower: float = 1.0) -> float:
        """Part of the cycle in which a batch runs."""
        return slower * sum(t.model.latency_ms(self.size, t.batch) for t in self.turns) / self.duty_ms


Gpu = tuple[Share, ...]
Fleet = tuple[Gpu, ...]
Place = tuple[int, int]
"""Index of the GPU and of its share."""


@dataclass(frozen=True)
class Need:
    """A share that a model should get."""

    size: int
    rate_per_s: float


def efficient_size(model: Service, grid: Grid, gain: float) -> int | None:
    """The size at the top of the steepest gain of saturated throughput (step 2); the whole GPU is never it.

    None: no size meets the objective but perhaps the whole.
    """
    full = {size: found for size in grid.sizes if (found := saturated(model, size)) is not None}
    sizes = [s for s in grid.sizes if s in full and s != grid.whole]
    if not sizes:
        return grid.whole if grid.whole in full else None
    best, steepest = sizes[0], 0.0
    for low, high in pairwise(sizes):
        slope = (full[high].per_s - full[low].per_s) / (high - low)
        if full[high].per_s >= gain * full[low].per_s and slope > steepest:
            best, steepest = high, slope
    return best


def sufficient_size(model: Service, grid: Grid, turn: Turn, size: int) -> int:
    """Smallest size, walking down from ``size``, on which the turn's batch and cycle still hold (step 3)."""
    found = size
    for smaller in reversed([s for s in grid.sizes if s < size]):
        latency_ms = model.latency_ms(smaller, turn.batch)
        if latency_ms > turn.duty_ms + EPSILON or latency_ms + turn.duty_ms > model.objective_ms + EPSILON:
            break
        found = smaller
    return found


def estimate(model: Service, rate_per_s: float, grid: Grid, rules: Rules) -> list[Need] | None:
    """The shares a model needs by itself (step 3); None if it cannot meet its objective."""
    size = efficient_size(model, grid, rules.gain)
    full = saturated(model, size) if size is not None else None
    if size is None or full is None:
        return None
    number = max(0, int((rate_per_s - EPSILON) // full.per_s))
    needs = [Need(size, full.per_s)] * number
    left_per_s = rate_per_s - number * full.per_s
    if left_per_s > (rules.slack_per_s if number else EPSILON):
        turn = residue(model, size, left_per_s)
        if turn is None:
            return None
        needs.append(Need(sufficient_size(model, grid, turn, size), left_per_s))
    return needs
