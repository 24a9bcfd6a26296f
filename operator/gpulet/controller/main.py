"""The operator's process: one leader by Lease; kopf's root tasks beside our own: the end of one is the end of all."""

import asyncio
import dataclasses
import logging
import os
import secrets
import signal
import time
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import kopf
from aiohttp import web

from gpulet.api import names
from gpulet.controller.cache import Cache
from gpulet.controller.execute import Executor
from gpulet.controller.loop import Loop
from gpulet.controller.schemas import until_known
from gpulet.controller.scraper import Scraper
from gpulet.kube.client import Client, load_configuration
from gpulet.kube.events import Events
from gpulet.kube.lease import Lease
from gpulet.metrics.exported import Exported

log = logging.getLogger("gpulet")

HEALTH_PORT = 8080
_STALE_PASS_S = 120.0
_KINDS = ("inferencemodels", "tuningjobs", "modelprofiles", "gpulets")


def main() -> None:
    """Entry point of ``gpulet controller``."""
    logging.basicConfig(level=os.environ.get("GPULET_LOG_LEVEL", "INFO"), format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("kopf").setLevel(logging.WARNING)
    asyncio.run(run())


async def run() -> None:
    """Standby with warm caches until the Lease is ours; then everything until the first part ends."""
    stop = asyncio.Event()
    for sign in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(sign, stop.set)
    identity = f"{os.environ.get('POD_NAME', os.uname().nodename)}-{secrets.token_hex(4)}"
    async with Client(await load_configuration()) as client, aiohttp.ClientSession() as session:
        cache = Cache(client, system_namespace=os.environ.get("POD_NAMESPACE", names.SYSTEM_NAMESPACE))
        exported = Exported()
        scraper = Scraper(cache, session)
        loop = Loop(cache, Executor(client, Events(client, identity)), scraper, exported)
        lease = Lease(client, os.environ.get("POD_NAMESPACE", names.SYSTEM_NAMESPACE), names.LEASE, identity)
        runner = await _serve_health(loop, cache, exported)
        warm = asyncio.create_task(_warm(client, cache), name="cache")
        try:
            if await _acquired(lease, cache, warm, stop):
                await _lead(loop, scraper, lease, cache, warm, stop)
        finally:
            await lease.release()
            warm.cancel()
            await runner.cleanup()


async def _warm(client: Client, cache: Cache) -> None:
    """Caches are filled, and the probe says ready, only where the API server keeps all that we write."""
    await until_known(client)
    await cache.run()


async def _candidate(lease: Lease, cache: Cache) -> None:
    """Leads only who sees everything: one that cannot (an older CRD) must not keep another from leading."""
    await cache.synced()
    await lease.acquire()


async def _acquired(lease: Lease, cache: Cache, warm: "asyncio.Task[None]", stop: asyncio.Event) -> bool:
    """Waits in standby; False if we are to stop before it is our turn. An error of the caches is raised."""
    candidate = asyncio.create_task(_candidate(lease, cache))
    stopping = asyncio.create_task(stop.wait())
    done, _ = await asyncio.wait({candidate, stopping, warm}, return_when=asyncio.FIRST_COMPLETED)
    candidate.cancel()
    stopping.cancel()
    if warm in done:
        warm.result()
    return candidate in done


async def _lead(
    loop: Loop, scraper: Scraper, lease: Lease, cache: Cache, warm: "asyncio.Task[None]", stop: asyncio.Event
) -> None:
    """kopf's root tasks and ours together: whichever ends first, with or without an error, ends the process."""
    existing = asyncio.all_tasks()
    registry = kopf.OperatorRegistry()
    kopf.on.login(registry=registry)(_login)
    for plural in _KINDS:
        kopf.on.event(names.GROUP, names.VERSION, plural, registry=registry)(_waker(cache))
    settings = kopf.OperatorSettings()
    settings.peering.standalone = True
    settings.posting.enabled = False
    tasks = list(
        await kopf.spawn_tasks(
            registry=registry,
            settings=settings,
            clusterwide=True,
            standalone=True,
            stop_flag=stop,
            # Its own choice would be the user's name, which user 65532 has not.
            identity=lease.identity,
        )
    )
    tasks += [
        asyncio.create_task(loop.run(), name="planning loop"),
        asyncio.create_task(scraper.run(), name="scraper"),
        asyncio.create_task(lease.hold(), name="lease"),
        asyncio.create_task(_until(warm), name="caches"),
    ]
    await kopf.run_tasks(tasks, ignored=existing)


def _login(**arguments: Any) -> kopf.ConnectionInfo | None:
    """The pod's service account, else the kubeconfig: the same order as our own client, and the same address.

    kopf would ask the DNS for the API server; the environment names it on clusters without one, too.
    """
    info = kopf.login_with_service_account(**arguments)
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if info is not None and host:
        return dataclasses.replace(info, server=f"https://{f'[{host}]' if ':' in host else host}:{port}")
    return info or kopf.login_with_kubeconfig(**arguments)


def _waker(cache: Cache) -> Callable[..., Awaitable[None]]:
    """A handler decides nothing and remembers nothing: it wakes the loop."""

    async def wake(**_: object) -> None:
        cache.touch()

    return wake


async def _until(task: "asyncio.Task[None]") -> None:
    await asyncio.shield(task)


async def _serve_health(loop: Loop, cache: Cache, exported: Exported) -> web.AppRunner:
    """:8080 /healthz fails when passes have stopped, /readyz until caches are synced, /metrics."""

    async def healthz(_: web.Request) -> web.Response:
        age_s = time.monotonic() - loop.last_pass_s
        stale = loop.leading and age_s > max(_STALE_PASS_S, 3 * loop.period_s)
        return web.Response(status=500 if stale else 200, text=f"last pass {age_s:.0f} s ago\n")

    async def readyz(_: web.Request) -> web.Response:
        return web.Response(status=200 if cache.is_synced else 503, text="synced\n" if cache.is_synced else "listing\n")

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=exported.text(), content_type="text/plain")

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", metrics)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", int(os.environ.get("GPULET_HEALTH_PORT", HEALTH_PORT))).start()
    return runner
