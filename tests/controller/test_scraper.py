"""The scraper against pods that answer anything at all. Servers listen on loopback addresses of their own."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from gpulet.api import workload
from gpulet.controller.scraper import Scraper
from tests.controller.cluster import Cluster, inference_model

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
ADDRESS = "127.0.9.1"
REPORT = {
    "models": [{"name": "m", "digest": "sha256:1", "ready": True}],
    "runtime": "triton",
    "runtimeVersion": "2",
}


class Caches:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def objects(self) -> Any:
        return self._cluster.objects

    def touch(self) -> None:
        pass


def cluster_with(address: str, *, owner_uid: str = "g-uid") -> Cluster:
    cluster = Cluster()
    cluster.add(inference_model("m"))
    cluster.add({"kind": "Gpulet", "metadata": {"name": "g", "namespace": "vision", "uid": "g-uid"}, "spec": {}})
    labels = {"app.kubernetes.io/managed-by": "gpulet", "gpulet.dev/role": "serve", "gpulet.dev/model": "m"}
    owner = {"kind": "Gpulet", "name": "g", "uid": owner_uid, "controller": True}
    cluster.add(
        {
            "kind": "Pod",
            "metadata": {"name": "g", "namespace": "vision", "labels": labels, "ownerReferences": [owner]},
            "spec": {},
            "status": {"podIP": address, "conditions": [{"type": "Ready", "status": "True"}]},
        }
    )
    return cluster


@asynccontextmanager
async def pod_at(address: str, port: int, path: str, handler: Handler) -> AsyncIterator[None]:
    app = web.Application()
    app.router.add_get(path, handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, address, port).start()
    try:
        yield
    finally:
        await runner.cleanup()


async def scraped(cluster: Cluster) -> Scraper:
    """After one round of questions."""
    async with aiohttp.ClientSession() as session:
        scraper = Scraper(Caches(cluster), session)  # type: ignore[arg-type]  # of the cache it uses these two
        await asyncio.gather(*(ask() for ask in scraper._questions()))
        return scraper


async def says_report(_: web.Request) -> web.Response:
    return web.json_response(REPORT)


@pytest.mark.parametrize("address", [ADDRESS, "::1"])
async def test_a_pod_is_asked_at_its_address_of_either_family(address: str) -> None:
    async with pod_at(address, workload.REPORT_PORT, "/report", says_report):
        scraper = await scraped(cluster_with(address))
    assert scraper.observations().reports["vision", "g"].models[0].digest == "sha256:1"


async def test_a_pod_that_only_bears_our_labels_is_not_asked() -> None:
    """Its status says where to ask: whoever may write a pod could point the operator anywhere."""
    async with pod_at(ADDRESS, workload.REPORT_PORT, "/report", says_report):
        scraper = await scraped(cluster_with(ADDRESS, owner_uid="another"))
    assert not scraper.observations().reports


async def redirects(_: web.Request) -> web.Response:
    raise web.HTTPFound(f"http://{ADDRESS}:{workload.REPORT_PORT}/elsewhere")


async def never_ends(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(64):
        await response.write(b" " * 2**20)
    await response.write(json.dumps(REPORT).encode())
    return response


async def nests(_: web.Request) -> web.Response:
    return web.Response(text="[" * 200_000)


async def writes_latin(_: web.Request) -> web.Response:
    return web.Response(body=b"\xff\xfe{}")


@pytest.mark.parametrize("handler", [redirects, never_ends, nests, writes_latin])
async def test_an_odd_answer_counts_for_nothing_and_ends_nothing(handler: Handler) -> None:
    async with pod_at(ADDRESS, workload.REPORT_PORT, "/report", handler):
        scraper = await scraped(cluster_with(ADDRESS))
    assert not scraper.observations().reports


async def test_how_long_a_ready_pod_has_been_silent_is_known() -> None:
    """Since its last figures, or else since it was first asked; who is not ready owes none."""
    cluster = cluster_with(ADDRESS)
    ready = cluster.objects["Pod"]["vision", "g"]["status"]["conditions"][0]
    async with aiohttp.ClientSession() as session:
        scraper = Scraper(Caches(cluster), session)  # type: ignore[arg-type]  # of the cache it uses these two

        async def silent_s() -> float | None:
            await asyncio.gather(*(ask() for ask in scraper._questions()))
            return scraper.observations().silent_s.get(("vision", "g"))

        ready["status"] = "False"
        assert await silent_s() is None
        ready["status"] = "True"
        first = await silent_s()
        await asyncio.sleep(0.3)
        later = await silent_s()
        assert first is not None and later is not None and later - first >= 0.3
        report = pod_at(ADDRESS, workload.REPORT_PORT, "/report", says_report)
        metrics = pod_at(ADDRESS, workload.METRICS_PORT, "/metrics", says_figures)
        async with report, metrics:
            told = await silent_s()
        assert told is not None and told < later
        await asyncio.sleep(0.3)
        assert (await silent_s() or 0) >= 0.3


async def says_figures(_: web.Request) -> web.Response:
    return web.Response(text='nv_inference_request_success{model="m",version="1"} 7\n')
