"""The two that an agent's plugin stands between: a kubelet that calls it, and an API server with faults on demand."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import yaml
from aiohttp import web
from kubernetes.aio.client.configuration import Configuration

from gpulet.agent.plugin import Plugin
from gpulet.agent.proto import dra_pb2, health_pb2
from gpulet.agent.shares import Shares
from gpulet.kube.client import Client
from gpulet.metrics.node import NodeMetrics

_SERVICE = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/"


@dataclass
class Api:
    """Serves objects and takes events; ``delay_s`` and ``status`` are its faults."""

    claims: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By name; other objects that are read one by one too."""
    slices: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    forbidden: set[str] = field(default_factory=set)
    """Names of what may not be written."""
    written: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """What was applied, by name."""
    delay_s: float = 0.0
    status: int = 200
    asked: int = 0

    async def answer(self, request: web.Request) -> web.Response:
        self.asked += 1
        await asyncio.sleep(self.delay_s)
        if self.status != 200:
            return web.json_response({"message": "not now"}, status=self.status)
        name = request.path.removesuffix("/status").rsplit("/", 1)[1]
        if request.method == "PATCH":
            if name in self.forbidden:
                return web.json_response({"message": "forbidden"}, status=403)
            applied = yaml.safe_load(await request.text())
            self.asked += 1
            applied["metadata"] |= {"uid": name, "resourceVersion": str(self.asked)}
            self.written.setdefault(name, []).append(applied)
            return web.json_response(self.written[name][-1])
        if request.method == "POST":
            self.events.append(await request.json())
            return web.json_response(self.events[-1], status=201)
        if request.path.endswith("/resourceslices"):
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": self.slices})
        found = self.claims.get(name)
        return web.json_response(found if found else {"message": "not found"}, status=200 if found else 404)


@asynccontextmanager
async def client_of(api: Api) -> AsyncIterator[Client]:
    """A client of that API server, on loopback."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", api.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with Client(Configuration(host=f"http://127.0.0.1:{runner.addresses[0][1]}")) as client:
            yield client
    finally:
        await runner.cleanup()


@dataclass
class Kubelet:
    """Calls the plugin's service as the kubelet does."""

    channel: grpc.aio.Channel

    async def prepare(self, *claims: dict[str, Any]) -> dict[str, Any]:
        """Answers by uid."""
        request = dra_pb2.NodePrepareResourcesRequest(claims=[_named(c) for c in claims])
        answer = await self._call("NodePrepareResources", request, dra_pb2.NodePrepareResourcesResponse)
        return dict(answer.claims)

    async def unprepare(self, *claims: dict[str, Any]) -> dict[str, Any]:
        request = dra_pb2.NodeUnprepareResourcesRequest(claims=[_named(c) for c in claims])
        answer = await self._call("NodeUnprepareResources", request, dra_pb2.NodeUnprepareResourcesResponse)
        return dict(answer.claims)

    async def health(self, service: str = "v1.DRAResourceHealth") -> AsyncIterator[dict[str, tuple[int, str]]]:
        """(health, message) by device, of all devices of ``gpu-*`` names, each time the plugin tells."""
        watch = self.channel.unary_stream(
            f"/{service}/NodeWatchResources",
            request_serializer=health_pb2.NodeWatchResourcesRequest.SerializeToString,
            response_deserializer=health_pb2.NodeWatchResourcesResponse.FromString,
        )
        async for answer in watch(health_pb2.NodeWatchResourcesRequest()):
            yield {d.device.device_name: (int(d.health), d.message) for d in answer.devices}

    async def _call(self, method: str, request: Any, response: Any) -> Any:
        call = self.channel.unary_unary(
            _SERVICE + method,
            request_serializer=type(request).SerializeToString,
            response_deserializer=response.FromString,
        )
        return await call(request, timeout=45.0)


@asynccontextmanager
async def kubelet_of(
    shares: Shares, client: Client, folder: Path, metrics: NodeMetrics | None = None
) -> AsyncIterator[Kubelet]:
    """A served plugin and its kubelet. ``folder``: the kubelet's; a short path, for socket addresses."""
    plugin = Plugin(
        client,
        shares,
        kubelet=folder,
        pod_uid="agent",
        registered=lambda: None,
        changed=lambda: None,
        metrics=metrics or NodeMetrics(),
        period_s=0.05,
    )
    await plugin.start()
    try:
        async with grpc.aio.insecure_channel(f"unix:{folder}/plugins/gpulet.dev/agent.sock") as channel:
            yield Kubelet(channel)
    finally:
        await plugin.stop()


def _named(claim: dict[str, Any]) -> Any:
    metadata = claim["metadata"]
    return dra_pb2.Claim(namespace=metadata["namespace"], name=metadata["name"], uid=metadata["uid"])
