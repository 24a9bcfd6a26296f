"""A GPU that is written down, not measured: latency over batch and share, with knees, and interference of neighbours.

A model's kernels fill only part of a GPU; how much grows with the batch. Up to that knee latency falls with the share,
beyond it nothing is gained (papers: "just the right amount of GPU"; D-STACK calls it the knee). With ``work`` in ms
that a request takes of a whole GPU which it fills, and p the share of the GPU:

    L(b, p) = launch + b x work / min(p, knee(b)),   knee(b) = k1 + (k32 - k1) (b - 1) / 31

A batch costs the same compute per request whatever its size; larger ones share the launch and fill more of the GPU. A
neighbour slows a model down in proportion to the memory traffic of both, each scaled by its share of the GPU (0..1):
1 + STRENGTH x traffic x share x traffic' x share'. The figures are chosen so that a batch of 32 takes 2 to 45 ms on the
whole GPU, of which it fills 30 to 100 %.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.baselines.surface import MPS, Service, service

BATCHES = (1, 2, 4, 8, 16, 32)
STRENGTH = 1.0
"""Slow-down of two models that each use all of the memory bandwidth on half of the GPU: 1.25."""


@dataclass(frozen=True)
class Shape:
    """What the latency of a model is made of."""

    launch_ms: float
    work_ms: float
    knee_1: float
    knee_32: float
    traffic: float
    """Part of the memory bandwidth that the model uses when it has the whole GPU, 0..1."""

    def latency_ms(self, batch: int, share: float) -> float:
        """Of one batch; ``share`` of the GPU, 0..1."""
        knee = min(1.0, self.knee_1 + (self.knee_32 - self.knee_1) * (batch - 1) / 31)
        return self.launch_ms + batch * self.work_ms / min(share, knee)


MODELS = {
    "lenet": Shape(0.2, 0.02, 0.10, 0.30, 0.10),
    "googlenet": Shape(2.0, 0.35, 0.20, 0.50, 0.40),
    "resnet50": Shape(2.0, 0.60, 0.25, 0.65, 0.60),
    "ssd": Shape(4.0, 0.75, 0.25, 0.60, 0.50),
    "vgg16": Shape(1.0, 1.20, 0.50, 1.00, 0.90),
}
"""The five models of gpu-lets by name; the figures are ours."""


def made(name: str, shape: Shape, objective_ms: float | None = None) -> Service:
    """The model on shares of the grid ``MPS``; without an objective, twice the whole GPU's latency at batch 32."""
    points = {size: {b: shape.latency_ms(b, size / 100) for b in BATCHES} for size in MPS.sizes}
    return service(name, objective_ms or 2 * points[MPS.whole][32], points)


def services() -> list[Service]:
    """The five models with their objectives."""
    return [made(name, shape) for name, shape in MODELS.items()]


def slowdown(me: Service, batch: int, size: int, other: Service, other_batch: int, other_size: int) -> float:
    """Factor on a model's latency beside a neighbour; both of ``MODELS``."""
    mine, theirs = MODELS[me.name].traffic * size / 100, MODELS[other.name].traffic * other_size / 100
    return 1 + STRENGTH * mine * theirs


def worst_slowdown() -> float:
    """The largest factor of any two of ``MODELS`` on any two shares of one GPU."""
    most = max(shape.traffic for shape in MODELS.values())
    return 1 + STRENGTH * most * most / 4
