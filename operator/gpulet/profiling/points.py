"""From what was measured to points of a profile, and their report. Pure."""

import statistics
from dataclasses import dataclass

from gpulet.api.modelprofile import LatencyMicroseconds, Point
from gpulet.api.workload import ProfileReport, ProfileSpec

MESSAGE_LIMIT_BYTES = 4096
"""Of a termination message: the kubelet cuts what is longer."""


@dataclass(frozen=True)
class Runs:
    """One closed loop with one caller."""

    latencies_us: list[float]
    elapsed_s: float


def point(spec: ProfileSpec, batch: int, runs: Runs) -> Point:
    """What the runs of full batches say; percentiles interpolate between the two nearest ranks.

    Memory is the share's whole memory, an upper bound: a simulated device has none of its own to measure.
    """
    cuts = statistics.quantiles(runs.latencies_us, n=100, method="inclusive") if len(runs.latencies_us) > 1 else None
    mean_us = statistics.fmean(runs.latencies_us)
    p50_us, p99_us = (cuts[49], cuts[98]) if cuts else (mean_us, mean_us)
    return Point(
        product=spec.product,
        mig=spec.mig,
        compute_percent=spec.compute_percent,
        batch=batch,
        latency_microseconds=LatencyMicroseconds(mean=round(mean_us, 1), p50=round(p50_us, 1), p99=round(p99_us, 1)),
        throughput_per_second=round(batch * len(runs.latencies_us) / runs.elapsed_s, 2),
        memory_mebibytes=spec.memory_mebibytes,
    )


def message_of(report: ProfileReport) -> str:
    """The report as a termination message; raises ValueError where it is too long for one."""
    text = report.model_dump_json(by_alias=True, exclude_none=True)
    if len(text.encode()) > MESSAGE_LIMIT_BYTES:
        raise ValueError(
            f"spec.measure.batches: the report of {len(report.points)} batches takes {len(text.encode())} bytes, a "
            f"termination message {MESSAGE_LIMIT_BYTES}; measure fewer batches in one profile"
        )
    return text
