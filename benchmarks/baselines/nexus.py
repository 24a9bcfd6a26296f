"""Temporal sharing by squishy bin packing: Nexus (SOSP'19) section 4.1. The baseline that gpu-lets compares with.

Whole GPUs only. What saturates a GPU gets one of its own; the residues share GPUs by duty cycle, a batch of every
model in each cycle, as long as cycle + own latency <= own objective for each (the merge rule of Nexus, which is more
generous than the one in the program of gpu-lets).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.baselines.surface import EPSILON, Service, Turn, residue, saturated

BATCH_TOLERANCE = 1e-3
"""Part of a request by which a batch may fall short of cycle x rate (rounding of products)."""


@dataclass(frozen=True)
class Node:
    """One GPU (or share of one) and the models that take turns on it."""

    size: int
    duty_ms: float
    turns: tuple[Turn, ...]

    @property
    def busy_ms(self) -> float:
        """Time of one cycle in which a batch runs."""
        return sum(t.model.latency_ms(self.size, t.batch) for t in self.turns)

    @property
    def occupancy(self) -> float:
        return self.busy_ms / self.duty_ms


def merge(size: int, duty_ms: float, turns: Sequence[Turn], *, slower: float = 1.0) -> Node | None:
    """These models in one cycle of ``duty_ms``, with batches of cycle x rate; None if it cannot hold."""
    fitted = []
    for turn in turns:
        batch = max(1, math.ceil(duty_ms * turn.rate_per_s / 1000 - BATCH_TOLERANCE))
        latency_ms = slower * turn.model.latency_ms(size, batch)
        if duty_ms + latency_ms > turn.model.objective_ms + EPSILON:
            return None
        fitted.append(replace(turn, batch=batch, duty_ms=duty_ms))
    node = Node(size, duty_ms, tuple(fitted))
    return node if slower * node.busy_ms <= duty_ms + EPSILON else None


def pack(size: int, residues: Sequence[Turn]) -> list[Node]:
    """Best fit decreasing by occupancy: into the node that becomes fullest, at the shorter of both cycles (step 3)."""
    nodes: list[Node] = []
    for turn in sorted(residues, key=lambda t: (-t.model.latency_ms(size, t.batch) / t.duty_ms, t.model.name)):
        merged = [(merge(size, min(n.duty_ms, turn.duty_ms), (*n.turns, turn)), i) for i, n in enumerate(nodes)]
        possible = [(node.occupancy, -i, node) for node, i in merged if node is not None]
        if possible:
            _, i, best = max(possible, key=lambda found: found[:2])
            nodes[-i] = best
        else:
            nodes.append(Node(size, turn.duty_ms, (turn,)))
    return nodes


def squishy(size: int, demands: Sequence[tuple[Service, float]]) -> list[Node] | None:
    """All GPUs of a plan for (model, requests per second); None if a model cannot meet its objective at all."""
    alone: list[Node] = []
    residues: list[Turn] = []
    for model, rate_per_s in demands:
        full = saturated(model, size)
        if full is None:
            return None
        number = math.floor(rate_per_s / full.per_s + EPSILON)
        duty_ms = 1000 * full.batch / full.per_s
        alone += [Node(size, duty_ms, (Turn(model, full.per_s, full.batch, duty_ms),))] * number
        left_per_s = rate_per_s - number * full.per_s
        if left_per_s > EPSILON:
            turn = residue(model, size, left_per_s)
            if turn is None:
                return None
            residues.append(turn)
    return alone + pack(size, residues)
