"""Each way a request can fail arrives as one family of errors; credentials are those of the moment."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from kubernetes.aio.client.configuration import Configuration

from gpulet.kube.client import Client
from gpulet.kube.errors import (
    ConflictError,
    ForbiddenError,
    GoneError,
    InvalidError,
    KubeError,
    NotFoundError,
    UnavailableError,
)
from gpulet.kube.kinds import NODE, POD


@asynccontextmanager
async def client_of(answer: web.Response | None = None, seen: list[web.Request] | None = None) -> AsyncIterator[Client]:
    """A client of a server that gives the same answer to everything; without one, of a port that nobody serves."""

    async def say(request: web.Request) -> web.Response:
        assert answer is not None
        if seen is not None:
            seen.append(request)
        return web.Response(status=answer.status, body=answer.body, content_type="application/json")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", say)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    if answer is None:
        await runner.cleanup()
    try:
        configuration = Configuration(host=f"http://127.0.0.1:{port}")
        async with Client(configuration) as client:
            yield client
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("status", "error", "retryable"),
    [
        (400, InvalidError, False),
        (401, UnavailableError, True),
        (403, ForbiddenError, False),
        (404, NotFoundError, False),
        (409, ConflictError, True),
        (410, GoneError, True),
        (422, InvalidError, False),
        (429, UnavailableError, True),
        (500, UnavailableError, True),
        (503, UnavailableError, True),
    ],
)
async def test_a_status_means_one_error_with_the_server_s_words(
    status: int, error: type[KubeError], retryable: bool
) -> None:
    async with client_of(web.Response(status=status, body=b'{"message": "spec.x: too long"}')) as client:
        with pytest.raises(error, match=r"GET /api/v1/nodes/n: spec.x: too long") as raised:
            await client.get(NODE, "n")
        assert raised.value.retryable is retryable


async def test_a_refused_connection_can_be_tried_again() -> None:
    async with client_of() as client:
        with pytest.raises(UnavailableError, match="/api/v1/nodes/n"):
            await client.get(NODE, "n")
        with pytest.raises(UnavailableError, match="watch pods"):
            async for _ in client.watch(POD, version="1"):
                pass


async def test_an_answer_that_is_no_json_can_be_tried_again() -> None:
    """A proxy's page in place of an answer, or a line of it in a stream."""
    async with client_of(web.Response(body=b"<html>\n")) as client:
        with pytest.raises(UnavailableError):
            await client.get(NODE, "n")
        with pytest.raises(UnavailableError):
            async for _ in client.watch(POD, version="1"):
                pass


async def test_each_request_carries_the_token_of_its_moment() -> None:
    """Failure case M6."""
    tokens = iter(["bearer old", "bearer new"])
    seen: list[web.Request] = []

    def rotate(configuration: Configuration) -> None:
        configuration.api_key["BearerToken"] = next(tokens)

    async with client_of(web.Response(body=b"{}"), seen) as client:
        client._configuration.api_key["BearerToken"] = "bearer first"
        client._configuration.refresh_api_key_hook = rotate
        await client.get(NODE, "n")
        await client.get(NODE, "n")
    assert [r.headers["Authorization"] for r in seen] == ["bearer old", "bearer new"]


async def test_deleting_what_is_gone_is_success() -> None:
    async with client_of(web.Response(status=404, body=b"{}")) as client:
        await client.delete(POD, "p", "ns", uid="u")
