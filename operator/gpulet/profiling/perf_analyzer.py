"""Points from CSV files of NVIDIA's perf_analyzer, for users who measured with it. Pure.

Each file holds one batch size and one share, and names neither: the caller has to. Its times are microseconds, its
rate is samples (not batches) per second. Columns: https://github.com/triton-inference-server/perf_analyzer
"""

import csv
import io
from dataclasses import dataclass

from gpulet.api.modelprofile import LatencyMicroseconds, Point

_RATE = "Inferences/Second"
# The parts of a request's time, one after the other: their sum is the mean latency, which has no column of its own.
_PARTS = (
    "Client Send",
    "Network+Server Send/Recv",
    "Server Queue",
    "Server Compute Input",
    "Server Compute Infer",
    "Server Compute Output",
    "Client Recv",
)


class CsvError(ValueError):
    """The file is not what is needed; the message says how to call perf_analyzer."""


@dataclass(frozen=True)
class Measured:
    """What a file was measured with."""

    product: str
    compute_percent: int
    batch: int
    """perf_analyzer's -b."""
    memory_mebibytes: int
    mig: str | None = None
    instances: int = 1


def point_from_csv(text: str, measured: Measured) -> Point:
    """The row of concurrency 1, as a profile's point is a closed loop with one caller. Raises CsvError."""
    rows = list(csv.DictReader(io.StringIO(text)))
    row = next((r for r in rows if r.get("Concurrency", "").strip() == "1"), None)
    if row is None:
        raise CsvError("column Concurrency: no row of concurrency 1; run perf_analyzer with --concurrency-range 1")
    missing = [c for c in (_RATE, *_PARTS, "p50 latency", "p99 latency") if c not in row]
    if missing:
        raise CsvError(f"columns {', '.join(missing)} are missing; is this the file of perf_analyzer's option -f?")
    try:
        rate = float(row[_RATE])
        mean_us = sum(float(row[part]) for part in _PARTS)
        p50_us, p99_us = float(row["p50 latency"]), float(row["p99 latency"])
    except (TypeError, ValueError) as error:
        raise CsvError(f"row of concurrency 1: {error}") from error
    if min(rate, mean_us, p50_us, p99_us) <= 0:
        raise CsvError("row of concurrency 1: rate or latency is 0; measure for longer (--measurement-interval)")
    return Point(
        product=measured.product,
        mig=measured.mig,
        compute_percent=measured.compute_percent,
        batch=measured.batch,
        instances=measured.instances,
        latency_microseconds=LatencyMicroseconds(mean=mean_us, p50=p50_us, p99=p99_us),
        throughput_per_second=rate,
        memory_mebibytes=measured.memory_mebibytes,
    )
