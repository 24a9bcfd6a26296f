"""Guided self-tuning, as gpu-lets' authors compare with it (their ``greedy_part``; after GSLICE, SoCC'20).

Each model by itself takes the smallest size that carries what is left of its rate, else the largest there is. It knows
no neighbour: no interference, no time sharing.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.baselines.gpulets import Fleet, Share
from benchmarks.baselines.surface import EPSILON, Grid, Service, Turn, residue, saturated


def self_tuned(demands: Sequence[tuple[Service, float]], gpus: int, grid: Grid) -> Fleet | None:
    """A plan of (model, requests per second) on so many GPUs of at most two parts; None if it finds none."""
    fleet: Fleet = ((Share(grid.whole),),) * gpus
    for model, rate_per_s in sorted(demands, key=lambda d: d[1] * d[0].objective_ms):
        left_per_s = rate_per_s
        while left_per_s > 1e-6:
            placed = _next_share(fleet, model, left_per_s, grid)
            if placed is None:
                return None
            fleet, carried_per_s = placed
            left_per_s -= carried_per_s
    return fleet


def _next_share(fleet: Fleet, model: Service, left_per_s: float, grid: Grid) -> tuple[Fleet, float] | None:
    """The model on one more share, and what it carries there."""
    carries = {size: full for size in grid.sizes if (full := saturated(model, size)) is not None}
    enough = [s for s in carries if carries[s].per_s >= left_per_s - EPSILON]
    # The smallest that is enough and free, else the largest that is free.
    for size in [*enough, *sorted(carries, reverse=True)]:
        place = _free(fleet, size, grid)
        if place is None:
            continue
        g, rest = place
        turn = residue(model, size, left_per_s) if size in enough else None
        full = carries[size]
        turn = turn or Turn(model, min(left_per_s, full.per_s), full.batch, 1000 * full.batch / full.per_s)
        gpu = (Share(size, (turn,)), *rest)
        return (*fleet[:g], gpu, *fleet[g + 1 :]), turn.rate_per_s
    return None


def _free(fleet: Fleet, size: int, grid: Grid) -> tuple[int, tuple[Share, ...]] | None:
    """A GPU with an empty share of exactly this size, or a whole one that can be cut to it; and its other parts."""
    for g, gpu in enumerate(fleet):
        for s, share in enumerate(gpu):
            if not share.turns and share.size == size:
                return g, tuple(other for i, other in enumerate(gpu) if i != s)
    for g, gpu in enumerate(fleet):
        if gpu == (Share(grid.whole),) and size in grid.rest:
            return g, (Share(grid.rest[size]),)
    return None
