"""`gpulet profile-run` beside a real server, as two processes on loopback."""

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpulet.api.workload import ProfileReport, ProfileSpec
from tests.pods import pods_program
from tests.serving.server import Server, net

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path)
    yield made
    made.end()


def start(server: Server, **changes: object) -> subprocess.Popen[bytes]:
    values = {
        "model": "net", "product": "P", "compute_percent": 50, "memory_mebibytes": 1024, "batches": [1, 4],
        "seconds_per_point": 0.5,
    }  # fmt: skip
    spec = ProfileSpec.model_validate(values | changes)
    return subprocess.Popen(
        [pods_program(), "profile-run", spec.model_dump_json(by_alias=True, exclude_none=True)],
        env=server.environment | {"GPULET_TERMINATION_LOG": str(server.folder / "profile")},
    )


def report(server: Server) -> ProfileReport:
    message = (server.folder / "profile").read_bytes()
    assert len(message) <= 4096
    return ProfileReport.model_validate(json.loads(message))


def test_the_prober_measures_what_is_served_beside_it(server: Server) -> None:
    prober = start(server)
    server.start(net(queue_delay_microseconds=0))
    assert prober.wait(120) == 0
    said = report(server)
    assert said.error is None
    assert said.model_digest == server.report().models[0].digest
    assert [p.batch for p in said.points] == [1, 4]
    for point in said.points:
        latency = point.latency_microseconds
        assert 0 < latency.p50 <= latency.p99
        assert latency.mean < 500_000
        assert point.throughput_per_second == pytest.approx(point.batch * 1e6 / latency.mean, rel=0.02)
        assert (point.compute_percent, point.memory_mebibytes) == (50, 1024)


def test_what_the_server_refuses_is_the_report_s_error(server: Server) -> None:
    server.start(net())
    server.wait_ready()
    assert start(server, batches=[64]).wait(60) == 1
    assert "batch-size must be <= 4" in str(report(server).error)
    assert start(server, model="other").wait(60) == 1
    assert "model other is not among those served: ['net']" in str(report(server).error)


def test_a_prober_whose_server_never_comes_ends_when_told(server: Server) -> None:
    prober = start(server)
    with pytest.raises(subprocess.TimeoutExpired):
        prober.wait(3)
    prober.send_signal(signal.SIGTERM)
    assert prober.wait(5) == 128 + signal.SIGTERM
