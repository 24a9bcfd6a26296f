"""Each change of a GPU's health as an Event on its Node, with what helps."""

import asyncio
import logging
from typing import Any

from gpulet.agent.shares import Shares
from gpulet.kube.client import Client
from gpulet.kube.events import Events
from gpulet.kube.kinds import NODE
from gpulet.nvidia.source import Health

log = logging.getLogger("gpulet.health")

_REASONS: dict[Health, str] = {"healthy": "GpuHealthy", "degraded": "GpuDegraded", "lost": "GpuLost"}


class HealthEvents:
    """Tells what changed between two looks; a GPU that is well at the first look is no news."""

    def __init__(self, client: Client, shares: Shares, events: Events) -> None:
        self._client = client
        self._shares = shares
        self._events = events
        self._told: dict[str, tuple[Health, str]] = {}

    async def look(self) -> None:
        """Raises KubeError, DeviceError; the next look tells it then."""
        gpus = await asyncio.to_thread(self._shares.source.gpus)
        now = {gpu.uuid: (gpu.health, gpu.health_reason) for gpu in gpus}
        changed = {uuid: state for uuid, state in now.items() if state != self._told.get(uuid, ("healthy", ""))}
        if changed:
            node = await self._client.get(NODE, self._shares.node)
            for uuid, (health, reason) in changed.items():
                await self._tell(node, uuid, health, reason)
        self._told = now

    async def _tell(self, node: dict[str, Any], uuid: str, health: Health, reason: str) -> None:
        message = f"GPU {uuid} is {health}" + (f": {reason}" if reason else "")
        log.log(logging.INFO if health == "healthy" else logging.WARNING, "%s", message)
        await self._events.tell(node, reason=_REASONS[health], message=message, warning=health != "healthy")
