"""The informer against a server that misbehaves in every way a watch can."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from kubernetes.aio.client.configuration import Configuration

from gpulet.kube.client import Client
from gpulet.kube.informer import Informer
from gpulet.kube.kinds import POD

Stream = Callable[[web.StreamResponse], Awaitable[None]]


def pod(name: str, version: int, uid: str = "u") -> dict[str, Any]:
    metadata = {"name": name, "namespace": "ns", "resourceVersion": str(version), "uid": uid, "managedFields": [1]}
    return {"metadata": metadata}


def line(kind: str, raw: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": raw}).encode() + b"\n"


class Api:
    """Answers lists from ``pods`` and each watch with the next of ``streams``; the last one is repeated."""

    def __init__(self, pods: list[dict[str, Any]], streams: list[Stream]) -> None:
        self.pods, self.streams = pods, streams
        self.queries: list[dict[str, str]] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.queries.append(dict(request.query))
        if request.query.get("watch") != "true":
            return web.json_response({"metadata": {"resourceVersion": "10"}, "items": self.pods})
        response = web.StreamResponse()
        stream = self.streams.pop(0) if len(self.streams) > 1 else self.streams[0]
        if stream is gone_at_connect:
            return web.json_response({"message": "too old"}, status=410)
        await response.prepare(request)
        await stream(response)
        return response

    @property
    def lists(self) -> int:
        return sum(q.get("watch") != "true" for q in self.queries)


async def quiet(_: web.StreamResponse) -> None:
    await asyncio.sleep(3600)


async def gone_at_connect(_: web.StreamResponse) -> None:
    return


def says(*lines: bytes, then: Stream | None = None) -> Stream:
    async def stream(response: web.StreamResponse) -> None:
        for text in lines:
            await response.write(text)
        if then is not None:
            await then(response)

    return stream


@asynccontextmanager
async def informer_of(api: Api, **options: Any) -> AsyncIterator[Informer]:
    app = web.Application()
    app.router.add_get("/api/v1/pods", api.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    async with Client(Configuration(host=f"http://127.0.0.1:{port}")) as client:
        informer = Informer(client, POD, changed=lambda: None, **options)
        task = asyncio.create_task(informer.run())
        try:
            yield informer
        finally:
            task.cancel()
            await runner.cleanup()


async def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  (the caches signal nobody)
            await asyncio.sleep(0.02)


async def test_events_reach_the_cache_and_selectors_the_wire() -> None:
    """Failure case M2."""
    api = Api([pod("a", 1)], [says(line("ADDED", pod("b", 11)), line("DELETED", pod("a", 12)), then=quiet)])
    async with informer_of(api, labels="x=y") as informer:
        await until(lambda: set(informer.objects) == {("ns", "b")})
        assert all(q["labelSelector"] == "x=y" for q in api.queries)
        assert "managedFields" not in informer.objects["ns", "b"]["metadata"]


async def test_nothing_is_planned_before_the_first_list() -> None:
    api = Api([pod("a", 1)], [quiet])
    async with informer_of(api) as informer:
        await informer.synced.wait()
        assert set(informer.objects) == {("ns", "a")}


async def test_a_version_that_is_too_old_is_listed_anew_at_connect_and_in_the_stream() -> None:
    gone = line("ERROR", {"code": 410, "message": "too old", "kind": "Status"})
    api = Api([pod("a", 1)], [gone_at_connect, says(gone), quiet])
    async with informer_of(api) as informer:
        await until(lambda: api.lists == 3)
        assert set(informer.objects) == {("ns", "a")}


async def test_what_was_deleted_during_a_relist_is_gone() -> None:
    api = Api([pod("a", 1), pod("b", 2)], [gone_at_connect, quiet])
    async with informer_of(api) as informer:
        await informer.synced.wait()
        api.pods = [pod("b", 2)]
        await until(lambda: set(informer.objects) == {("ns", "b")})


async def test_a_stream_that_ends_in_half_a_line_is_opened_again_where_it_was() -> None:
    half = line("ADDED", pod("c", 13))[:20]
    api = Api([], [says(line("ADDED", pod("b", 12)), half), says(line("ADDED", pod("c", 13)), then=quiet)])
    async with informer_of(api) as informer:
        await until(lambda: set(informer.objects) == {("ns", "b"), ("ns", "c")})
        assert api.lists == 1
        assert api.queries[2]["resourceVersion"] == "12"


async def test_bookmarks_only_move_the_version() -> None:
    bookmark = line("BOOKMARK", {"metadata": {"resourceVersion": "50"}})
    api = Api([pod("a", 1)], [says(bookmark), quiet])
    async with informer_of(api) as informer:
        await until(lambda: len(api.queries) >= 3)
        assert api.queries[2]["resourceVersion"] == "50"
        assert set(informer.objects) == {("ns", "a")}


async def test_a_silent_stream_is_given_up() -> None:
    api = Api([], [quiet, says(line("ADDED", pod("a", 11)), then=quiet)])
    async with informer_of(api, silence_s=0.3) as informer:
        await until(lambda: set(informer.objects) == {("ns", "a")})


async def test_an_older_event_does_not_undo_what_a_write_answered() -> None:
    api = Api([], [quiet])
    async with informer_of(api) as informer:
        await informer.synced.wait()
        informer.learn(pod("a", 20))
        informer.learn(pod("a", 15))
        assert informer.objects["ns", "a"]["metadata"]["resourceVersion"] == "20"


async def test_a_late_answer_does_not_bring_back_what_was_deleted() -> None:
    api = Api([pod("a", 1, uid="old")], [says(line("DELETED", pod("a", 12, uid="old")), then=quiet)])
    async with informer_of(api) as informer:
        await until(lambda: informer.synced.is_set() and not informer.objects)
        informer.learn(pod("a", 11, uid="old"))
        assert not informer.objects
        informer.learn(pod("a", 13, uid="new"))
        assert set(informer.objects) == {("ns", "a")}


async def test_a_version_that_the_server_never_reached_is_listed_anew() -> None:
    """An etcd restored from a backup counts from further below: each watch fails, but not with 410."""
    ahead = line("ERROR", {"code": 504, "message": "Too large resource version", "kind": "Status"})
    api = Api([pod("a", 1)], [says(ahead)])
    async with informer_of(api) as informer:
        await until(lambda: api.lists >= 2)
        assert set(informer.objects) == {("ns", "a")}
