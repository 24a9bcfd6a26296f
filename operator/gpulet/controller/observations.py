"""What was seen of the running programs since the last pass: figures of Triton, reports, tuning progress."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpulet.api.workload import ServeReport, TuneProgress
from gpulet.controller.world import Key

WINDOW_S = 60.0
"""Rates and means are over this long; Triton's own summaries slide over about the same."""


@dataclass(frozen=True)
class ReplicaFigures:
    """One serving pod over the window."""

    requests: int
    seconds: float
    """Length of this pod's window."""
    mean_ms: float | None
    percentile_ms: float | None


@dataclass(frozen=True)
class Observations:
    """By Gpulet or job; what could not be reached is absent (the last value is held by the scraper, not here)."""

    figures: Mapping[Key, ReplicaFigures] = field(default_factory=dict)
    silent_s: Mapping[Key, float] = field(default_factory=dict)
    """Of each ready serving pod, for how long it has been asked in vain: since its last figures, or since ever."""
    reports: Mapping[Key, ServeReport] = field(default_factory=dict)
    progress: Mapping[Key, TuneProgress] = field(default_factory=dict)
    """By TuningJob."""
