"""What was measured of a model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ProfilePoint:
    """One measurement of one replica: a closed loop of full batches."""

    product: str
    mig: str | None
    compute_percent: int
    batch: int
    instances: int
    mean_us: float
    p50_us: float
    p99_us: float
    """Of one batch, microseconds."""
    throughput_per_s: float
    """Requests, not batches, per second."""
    memory_mib: int


@dataclass(frozen=True)
class Profile:
    """The surface of one model."""

    points: tuple[ProfilePoint, ...]
    source: str = ""
    """Which ModelProfile it is, for explanations."""
