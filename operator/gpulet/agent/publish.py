"""Publishing this node's ResourceSlices: at registration, when they vanish, when GPUs change; else no write."""

import asyncio
import logging
import time
from dataclasses import replace
from typing import Any

from gpulet.agent.foreign import Owner
from gpulet.agent.said import Said
from gpulet.agent.shares import Shares
from gpulet.agent.slices import plan_pool, published_health, stale_slices
from gpulet.api import names
from gpulet.kube.client import Client
from gpulet.kube.errors import KubeError
from gpulet.kube.informer import Informer
from gpulet.kube.kinds import NODE, RESOURCE_SLICE
from gpulet.nvidia.source import DeviceError, PhysicalGpu

log = logging.getLogger("gpulet.publish")

_RETRY_S = (1.0, 30.0)
"""First and longest pause before a failed write is tried again."""
_SETTLE_S = 0.1
"""Events come in bursts: a kubelet deletes all slices of its node one by one."""


class Publisher:
    """Keeps the slices as the inventory says."""

    def __init__(
        self, client: Client, shares: Shares, *, open_to_all: bool, taint_clear_s: float, owners_known: asyncio.Event
    ) -> None:
        """``owners_known``: nothing is published before it is known whose the GPUs are."""
        self._owners_known = owners_known
        self._client = client
        self._shares = shares
        self._open_to_all = open_to_all
        self._wake = asyncio.Event()
        self._said = Said(log)
        self._taint_clear_s = taint_clear_s
        self._healthy_since: dict[str, float] = {}
        self._holding = False
        self._published: tuple[tuple[PhysicalGpu, ...], dict[str, Owner]] | None = None
        fields = f"spec.nodeName={shares.node},spec.driver={names.DRIVER}"
        self.informer = Informer(client, RESOURCE_SLICE, changed=self.wake, fields=fields)

    def wake(self) -> None:
        """Look again soon: something may have changed."""
        self._wake.set()

    async def look_for_changes(self) -> None:
        """Wakes the publisher if the GPUs are not as they were published (health, MIG mode), or are about to be."""
        if self._holding or await asyncio.to_thread(self._inventory) != self._published:
            self.wake()

    async def run(self) -> None:
        await self.informer.synced.wait()
        await self._owners_known.wait()
        pause_s = _RETRY_S[0]
        while True:
            await self._wake.wait()
            await asyncio.sleep(_SETTLE_S)
            self._wake.clear()
            try:
                await self.publish()
            except (KubeError, DeviceError) as error:
                self._said.trouble(f"publishing the slices of {self._shares.node}", error)
                self._wake.set()
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _RETRY_S[1])
            else:
                self._said.well(f"publishing the slices of {self._shares.node}")
                pause_s = _RETRY_S[0]

    def _inventory(self) -> tuple[tuple[PhysicalGpu, ...], dict[str, Owner]]:
        return self._shares.source.gpus(), self._shares.withdrawn.read()

    async def publish(self) -> None:
        """Writes what differs from the inventory; raises KubeError."""
        node = self._shares.node
        gpus, owners = await asyncio.to_thread(self._inventory)
        existing = list(self.informer.objects.values())
        source = self._shares.source.name
        parent = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": ""}
        held = [self._held(gpu, existing) for gpu in gpus]
        self._holding = held != list(gpus)
        for gpu in held:
            plan = plan_pool(
                node,
                gpu,
                existing,
                source=source,
                open_to_all=self._open_to_all,
                parent=parent,
                owner=owners[gpu.uuid].reason if gpu.uuid in owners else "",
            )
            if plan and not parent["uid"]:
                # Read when it is needed: a node that was re-created has another uid (failure case C11).
                parent["uid"] = (await self._client.get(NODE, node))["metadata"]["uid"]
            for manifest in plan:
                self.informer.learn(await self._client.apply(manifest))
            if plan:
                log.info("published %s in %d slices", gpu.uuid, len(plan))
        for name in stale_slices(node, gpus, existing):
            await self._client.delete(RESOURCE_SLICE, name)
            log.info("withdrew slice %s", name)
        self._published = gpus, owners

    def _held(self, gpu: PhysicalGpu, existing: list[dict[str, Any]]) -> PhysicalGpu:
        """The GPU as it is to be published: a taint stays until it has been healthy for a while.

        The published taint is the memory of it, so a new agent waits anew instead of forgetting.
        """
        if gpu.health != "healthy":
            self._healthy_since.pop(gpu.uuid, None)
            return gpu
        since = self._healthy_since.setdefault(gpu.uuid, time.monotonic())
        if time.monotonic() - since >= self._taint_clear_s:
            return gpu
        return replace(gpu, health=published_health(self._shares.node, gpu, existing))
