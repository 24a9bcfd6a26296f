"""The agent's /metrics."""

import asyncio
import logging

from aiohttp import web

from gpulet.agent.shares import Shares
from gpulet.metrics.node import GpuSeen, NodeMetrics
from gpulet.nvidia.source import DeviceError

log = logging.getLogger("gpulet.exporter")


async def serve(metrics: NodeMetrics, shares: Shares, port: int) -> web.AppRunner | None:
    """Serves until cleaned up; GPUs are as they are when asked. None: no port, or it is taken, which is said."""
    if port == 0:
        return None

    async def answer(_: web.Request) -> web.Response:
        try:
            metrics.gpus(await asyncio.to_thread(_gpus, shares))
        except DeviceError as error:
            return web.Response(status=503, text=f"{error}\n")
        return web.Response(body=metrics.text(), content_type="text/plain")

    app = web.Application()
    app.router.add_get("/metrics", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, port=port).start()
    except OSError as error:
        log.error("metricsPort %d cannot be served: %s", port, error)
        await runner.cleanup()
        return None
    return runner


def _gpus(shares: Shares) -> list[GpuSeen]:
    owners = shares.withdrawn.read()
    return [
        GpuSeen(
            g.uuid,
            g.product,
            g.driver,
            g.health,
            owners[g.uuid].reason if g.uuid in owners else "",
            len(shares.source.idle(g.uuid)) if g.health != "lost" else 0,
        )
        for g in shares.source.gpus()
    ]
