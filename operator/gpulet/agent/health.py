"""What the kubelet is told of each device's health, so that a pod's status shows it (KEP 4680).

A complete list at first, at each change, and again well before the kubelet would call the devices unknown.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from gpulet.agent.devices import NodeDevice
from gpulet.agent.foreign import Owner
from gpulet.agent.proto import health_pb2
from gpulet.agent.shares import Shares

SERVICES = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
"""1.37 speaks both, 1.36 the second; their messages are the same."""
_TIMEOUT_S = 60
_AGAIN_S = 20.0
_MESSAGE_LENGTH = 1024


def report(
    devices: Mapping[tuple[str, str], NodeDevice], owners: Mapping[str, Owner], *, now_s: int
) -> list[health_pb2.DeviceHealth]:
    """One statement a device. Pure.

    What is degraded or withdrawn takes nothing new but harms nobody there: healthy, with a message.
    """
    return [
        health_pb2.DeviceHealth(
            device=health_pb2.DeviceIdentifier(pool_name=device.pool, device_name=device.name),
            health=health_pb2.UNHEALTHY if device.gpu.health == "lost" else health_pb2.HEALTHY,
            last_updated_time=now_s,
            health_check_timeout_seconds=_TIMEOUT_S,
            message=_message(device, owners.get(device.gpu.uuid))[:_MESSAGE_LENGTH],
        )
        for device in devices.values()
    ]


def _message(device: NodeDevice, owner: Owner | None) -> str:
    gpu = device.gpu
    said = [] if gpu.health == "healthy" else [f"GPU {gpu.uuid} is {gpu.health}: {gpu.health_reason}"]
    if owner is not None:
        said.append(f"GPU {gpu.uuid} is withdrawn ({owner.reason})")
    return "; ".join(said)


class HealthService:
    """Answers NodeWatchResources until stopped."""

    def __init__(self, shares: Shares, *, period_s: float) -> None:
        """``period_s``: between two looks at the GPUs."""
        self._shares = shares
        self._period_s = period_s
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """Streams end: a server that stops would wait for them."""
        self._stopped.set()

    async def watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """The stream of one kubelet."""
        told: list[tuple[str, str, int, str]] = []
        told_s = 0.0
        while not self._stopped.is_set():
            devices, owners = await asyncio.to_thread(self._look)
            found = report(devices, owners, now_s=int(time.time()))
            state = [(d.device.pool_name, d.device.device_name, int(d.health), d.message) for d in found]
            if state != told or time.monotonic() - told_s >= _AGAIN_S:
                told, told_s = state, time.monotonic()
                yield health_pb2.NodeWatchResourcesResponse(devices=found)
            try:
                await asyncio.wait_for(self._stopped.wait(), self._period_s)
            except TimeoutError:
                continue

    def _look(self) -> tuple[Mapping[tuple[str, str], NodeDevice], Mapping[str, Owner]]:
        return self._shares.devices(), self._shares.withdrawn.read()
