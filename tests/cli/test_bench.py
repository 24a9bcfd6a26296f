"""`gpulet bench`: the load it sends, what it refuses, what it reports."""

import asyncio
import ipaddress
import itertools
import json
import re
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from typer.testing import CliRunner

from gpulet.cli.bench import (
    BenchError,
    Target,
    check_bounds,
    permitted,
    private_network,
    quantile,
    report,
    run,
    schedule,
)
from gpulet.cli.main import app


@pytest.fixture
async def served() -> AsyncIterator[tuple[str, list[bytes]]]:
    """A v2 server on loopback that takes 20 ms a request and fails every fifth."""
    bodies: list[bytes] = []

    async def metadata(_: web.Request) -> web.Response:
        described = {"name": "m", "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]}
        return web.json_response(described)

    async def infer(request: web.Request) -> web.Response:
        bodies.append(await request.read())
        failed = len(bodies) % 5 == 0
        await asyncio.sleep(0.02)
        return web.Response(status=500 if failed else 200)

    application = web.Application()
    application.add_routes([web.get("/v2/models/m", metadata), web.post("/v2/models/m/infer", infer)])
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/v2/models/m", bodies
    await runner.cleanup()


async def test_an_open_loop_sends_what_was_scheduled_and_counts_failures(served: tuple[str, list[bytes]]) -> None:
    url, bodies = served
    target = Target(url, rate_per_s=50)
    (tally,) = await run([target], seconds=1.0, seed=3)
    found = report(target, tally, seconds=1.0)
    due = len(schedule(50, 1.0, 3))
    assert found["sent"] == due == len(bodies)
    assert found["errors"] == due // 5
    assert found["errorKinds"] == {"Status500": due // 5}
    assert found["answered"] == due - due // 5
    assert 20 <= found["latencyMilliseconds"]["p50"] < 200
    assert found["latencyMilliseconds"]["p50"] <= found["latencyMilliseconds"]["p99"]


async def test_the_line_for_people_has_a_word_only_for_what_failed(served: tuple[str, list[bytes]]) -> None:
    url, _ = served
    command = ["bench", url, "--rate", "20", "--seconds", "0.1", "--seed", "1"]
    fine = await asyncio.to_thread(CliRunner().invoke, app, command)
    assert re.search(r"m: [1-4] answered, 0 failed, [0-9.]+/s, mean", fine.output)
    command[command.index("0.1")] = "1"
    failed = await asyncio.to_thread(CliRunner().invoke, app, command)
    assert re.search(r"failed \(Status500 [0-9]+\), [0-9.]+/s", failed.output)


async def test_the_request_holds_a_binary_tensor_of_the_models_shape(served: tuple[str, list[bytes]]) -> None:
    url, bodies = served
    await run([Target(url, rate_per_s=20)], seconds=0.5, seed=1)
    header = json.loads(bodies[0][:-16])
    assert header["inputs"][0]["shape"] == [1, 4]
    assert header["inputs"][0]["parameters"]["binary_data_size"] == 16


def test_arrivals_are_a_poisson_stream_and_repeatable() -> None:
    times = schedule(200, 50, 7)
    gaps = [b - a for a, b in itertools.pairwise(times)]
    mean = sum(gaps) / len(gaps)
    deviation = (sum((g - mean) ** 2 for g in gaps) / len(gaps)) ** 0.5
    assert mean == pytest.approx(1 / 200, rel=0.05)
    assert deviation == pytest.approx(mean, rel=0.05)
    assert times == schedule(200, 50, 7) != schedule(200, 50, 8)


@pytest.mark.parametrize(
    ("host", "address", "allowed", "answer"),
    [
        ("localhost", "127.0.0.1", [], True),
        ("resnet.vision.svc", "10.96.0.7", [], True),
        ("resnet.vision.svc", "93.184.216.34", [], False),
        ("example.com", "93.184.216.34", [], False),
        ("10.1.2.3", "10.1.2.3", [], False),
        ("10.1.2.3", "10.1.2.3", ["10.1.0.0/16"], True),
        ("metadata.svc", "169.254.169.254", [], False),
    ],
)
def test_only_own_machines_are_loaded(host: str, address: str, allowed: list[str], answer: bool) -> None:
    networks = [private_network(text) for text in allowed]
    assert permitted(host, ipaddress.ip_address(address), networks) is answer


async def test_a_public_target_is_refused_without_a_way_round() -> None:
    with pytest.raises(BenchError, match="machines of your own only") as raised:
        await run([Target("http://8.8.8.8:8000/v2/models/m", 1)], seconds=1)
    assert "--allow" not in str(raised.value)


def test_a_public_range_cannot_be_allowed() -> None:
    with pytest.raises(BenchError, match="not a private range"):
        private_network("8.8.8.0/24")


async def test_a_foreign_target_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(BenchError, match=r"is not loopback.*--allow 10\.9\.9\.9.*NAME\.NAMESPACE\.svc"):
        await run([Target("http://10.9.9.9:8000/v2/models/m", 1)], seconds=1)


@pytest.mark.parametrize(("rate", "seconds"), [(0, 1), (1, 0), (1, 4000), (1e6, 3600)])
def test_a_load_without_bounds_is_refused(rate: float, seconds: float) -> None:
    with pytest.raises(BenchError):
        check_bounds([Target("http://127.0.0.1:1/v2/models/m", rate)], seconds)


def test_quantiles_are_values_that_were_seen() -> None:
    values = [float(v) for v in range(1, 101)]
    assert quantile(values, 0.99) == 99.0
    assert quantile(values, 0.5) == 50.0
    assert quantile([7.0], 0.99) == 7.0
    assert quantile([], 0.5) is None
