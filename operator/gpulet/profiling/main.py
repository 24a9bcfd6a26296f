"""`gpulet profile-run`: measures the model that is served beside this container, batch by batch, in a closed loop."""

import json
import logging
import os
import signal
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from gpulet.api.workload import HTTP_PORT, REPORT_PORT, ProfileReport, ProfileSpec, ServeReport
from gpulet.profiling.points import Runs, message_of, point
from gpulet.v2.client import V2Client, V2Error

log = logging.getLogger("gpulet.profile")

_WAIT_S = 900.0
_LEAST_RUNS = 20
"""Fewer say nothing of a percentile; a slow batch is then measured for longer than asked."""
_MOST_TIMES = 6
"""But not for more than so many times as long."""
_WARM_UP_RUNS = 3


def main(spec: str) -> None:
    """Entry point: the ProfileReport is the container's termination message; exits 1 if it holds an error."""
    logging.basicConfig(level="INFO", format="%(asctime)s %(name)s %(message)s")
    # The first process of a container ends at SIGTERM only where it says so.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    report: ProfileReport
    try:
        report = measure(ProfileSpec.model_validate_json(spec))
        text = message_of(report)
    except (V2Error, ValueError, TimeoutError) as error:
        report = ProfileReport(model_digest="", runtime="", runtime_version="", points=[], error=str(error)[:1000])
        text = message_of(report)
    path = Path(os.environ.get("GPULET_TERMINATION_LOG", "/dev/termination-log"))
    path.write_text(text)
    log.info("%s", text)
    sys.exit(1 if report.error else 0)


def measure(spec: ProfileSpec) -> ProfileReport:
    """Waits for the server, then one point a batch. Raises V2Error, ValueError, TimeoutError."""
    served = wait_for_server()
    digest = next((m.digest for m in served.models if m.name == spec.model), None)
    if digest is None:
        raise ValueError(f"model {spec.model} is not among those served: {[m.name for m in served.models]}")
    points = []
    with V2Client(int(os.environ.get("GPULET_HTTP_PORT", HTTP_PORT))) as client:
        metadata = client.metadata(spec.model)
        for batch in spec.batches:
            body, headers = client.batch(metadata, batch)
            runs = closed_loop(client, spec, body, headers)
            points.append(point(spec, batch, runs))
            log.info("batch %d: %d runs, %s", batch, len(runs.latencies_us), points[-1].latency_microseconds)
    return ProfileReport(
        model_digest=digest, runtime=served.runtime, runtime_version=served.runtime_version, points=points
    )


def closed_loop(client: V2Client, spec: ProfileSpec, body: bytes, headers: dict[str, str]) -> Runs:
    """Full batches, one after the other, for the asked time; raises V2Error."""
    for _ in range(_WARM_UP_RUNS):
        client.infer(spec.model, body, headers)
    latencies_us: list[float] = []
    started = now = time.perf_counter()
    while now - started < spec.seconds_per_point or (
        len(latencies_us) < _LEAST_RUNS and now - started < _MOST_TIMES * spec.seconds_per_point
    ):
        before = now
        client.infer(spec.model, body, headers)
        now = time.perf_counter()
        latencies_us.append((now - before) * 1e6)
    return Runs(latencies_us, elapsed_s=now - started)


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
