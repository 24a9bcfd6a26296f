"""`gpulet profile-run`: measures the model that is served beside this container, batch by batch, in a closed loop."""

import json
import logging
import os
import statistics
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from gpulet.api.modelprofile import LatencyMicroseconds, Point
from gpulet.api.workload import HTTP_PORT, REPORT_PORT, ProfileReport, ProfileSpec, ServeReport
from gpulet.v2.client import V2Client, V2Error

log = logging.getLogger("gpulet.profile")

_WAIT_S = 900.0
_LEAST_RUNS = 20
"""Fewer say nothing of a percentile; a slow batch is then measured for longer than asked."""
_WARM_UP_RUNS = 3
MESSAGE_LIMIT_BYTES = 4096


def main(spec: str) -> None:
    """Entry point: the ProfileReport is the container's termination message; exits 1 if it holds an error."""
    logging.basicConfig(level="INFO", format="%(asctime)s %(name)s %(message)s")
    parsed = ProfileSpec.model_validate_json(spec)
    try:
        report = measure(parsed, wait_for_server())
    except (V2Error, ValueError, TimeoutError) as error:
        report = ProfileReport(model_digest="", runtime="", runtime_version="", points=[], error=str(error)[:1000])
    text = report.model_dump_json(by_alias=True, exclude_none=True)
    path = Path(os.environ.get("GPULET_TERMINATION_LOG", "/dev/termination-log"))
    path.write_text(text)
    log.info("%s", text)
    sys.exit(1 if report.error else 0)


def measure(spec: ProfileSpec, served: ServeReport) -> ProfileReport:
    """One point a batch. Raises V2Error, ValueError."""
    points = []
    with V2Client(int(os.environ.get("GPULET_HTTP_PORT", HTTP_PORT))) as client:
        metadata = client.metadata(spec.model)
        for batch in spec.batches:
            body, headers = client.batch(metadata, batch)
            runs_us = _loop(client, spec, body, headers)
            points.append(point(spec, batch, runs_us))
            log.info("batch %d: mean %.0f us over %d runs", batch, statistics.fmean(runs_us), len(runs_us))
    report = ProfileReport(
        model_digest=served.models[0].digest,
        runtime=served.runtime,
        runtime_version=served.runtime_version,
        points=points,
    )
    if len(report.model_dump_json(by_alias=True, exclude_none=True)) > MESSAGE_LIMIT_BYTES:
        raise ValueError(f"{len(points)} batches do not fit into one report: measure fewer at a time")
    return report


def _loop(client: V2Client, spec: ProfileSpec, body: bytes, headers: dict[str, str]) -> list[float]:
    """Microseconds of each full batch, one after the other."""
    for _ in range(_WARM_UP_RUNS):
        client.infer(spec.model, body, headers)
    runs_us: list[float] = []
    started = time.perf_counter()
    while len(runs_us) < _LEAST_RUNS or time.perf_counter() - started < spec.seconds_per_point:
        before = time.perf_counter()
        client.infer(spec.model, body, headers)
        runs_us.append((time.perf_counter() - before) * 1e6)
    return runs_us


def point(spec: ProfileSpec, batch: int, runs_us: list[float]) -> Point:
    """What the runs say. Memory is the share's: on a simulated device nothing smaller can be measured."""
    mean_us = statistics.fmean(runs_us)
    cuts = statistics.quantiles(runs_us, n=100, method="inclusive")
    return Point(
        product=spec.product,
        mig=spec.mig,
        compute_percent=spec.compute_percent,
        batch=batch,
        latency_microseconds=LatencyMicroseconds(
            mean=round(mean_us, 1), p50=round(cuts[49], 1), p99=round(cuts[98], 1)
        ),
        throughput_per_second=round(batch * 1e6 / mean_us, 2),
        memory_mebibytes=spec.memory_mebibytes,
    )


def wait_for_server(*, patience_s: float = _WAIT_S) -> ServeReport:
    """The server's report once it serves; raises ValueError with its error, or TimeoutError."""
    base = f"http://127.0.0.1:{os.environ.get('GPULET_REPORT_PORT', REPORT_PORT)}"
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{base}/report", timeout=5) as answer:
                report = ServeReport.model_validate(json.load(answer))
        except (OSError, urllib.error.URLError, ValueError):
            time.sleep(0.5)
            continue
        if report.error:
            raise ValueError(report.error)
        if report.models and all(m.ready for m in report.models):
            return report
        time.sleep(0.5)
    raise TimeoutError(f"the server beside the prober is not ready after {patience_s:.0f} s: see its log")
