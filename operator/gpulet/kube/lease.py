"""Leader election by a Lease, as client-go does it: nobody's wall clock is compared with anybody else's."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gpulet.kube.client import Client
from gpulet.kube.errors import ConflictError, KubeError, NotFoundError
from gpulet.kube.kinds import LEASE

log = logging.getLogger("gpulet.lease")


class LeadershipLostError(Exception):
    """The Lease could not be renewed in time: the process must end, somebody else may lead already."""


@dataclass
class Lease:
    """One candidate. ``acquire`` waits until it leads, ``hold`` renews until it no longer does."""

    client: Client
    namespace: str
    name: str
    identity: str
    """Pod name and a random suffix: a restarted pod is another candidate."""
    duration_s: float = 15.0
    renew_deadline_s: float = 10.0
    retry_s: float = 2.0
    clock: Callable[[], float] = time.monotonic
    _seen: tuple[str, str] = ("", "")
    _seen_at_s: float = 0.0
    _held: dict[str, Any] | None = None
    _renewed_s: float = 0.0
    """When the last write that succeeded was *sent*: others count from when it arrived, so never earlier than this."""

    async def acquire(self) -> None:
        """Returns when we lead."""
        while True:
            try:
                async with asyncio.timeout(self.renew_deadline_s):
                    acquired = await self._try_acquire()
                if acquired:
                    log.info("%s leads", self.identity)
                    return
            except (KubeError, TimeoutError) as error:
                log.warning("lease: %s", error or "no answer in time")
            await asyncio.sleep(self.retry_s)

    async def hold(self) -> None:
        """Renews for ever; raises LeadershipLostError when it could not within the deadline, or was deposed."""
        while True:
            await asyncio.sleep(self.retry_s)
            left_s = self._renewed_s + self.renew_deadline_s - self.clock()
            try:
                async with asyncio.timeout(max(left_s, 0)):
                    await self._renew()
            except (KubeError, TimeoutError) as error:
                log.warning("lease: renewal failed: %s", error or "no answer in time")
            if self.clock() - self._renewed_s >= self.renew_deadline_s:
                raise LeadershipLostError(f"{self.identity}: not renewed for {self.renew_deadline_s:g} s")

    async def release(self) -> None:
        """On a clean stop: the successor starts at once."""
        if self._held is None:
            return
        try:
            # Read anew: a renewal that was cut off may have arrived.
            lease = await self.client.get(LEASE, self.name, self.namespace)
            spec = lease.get("spec") or {}
            if spec.get("holderIdentity") == self.identity:
                released = {"holderIdentity": "", "renewTime": _micro_time()}
                await self.client.replace(lease | {"spec": spec | released})
        except KubeError as error:
            log.warning("lease: not released: %s", error)
        self._held = None

    async def _try_acquire(self) -> bool:
        try:
            lease = await self.client.get(LEASE, self.name, self.namespace)
        except NotFoundError:
            return await self._create()
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        mark = (holder, spec.get("renewTime") or "")
        if mark != self._seen:
            self._seen, self._seen_at_s = mark, self.clock()
        duration_s = float(spec.get("leaseDurationSeconds") or self.duration_s)
        if holder and holder != self.identity and self.clock() - self._seen_at_s < duration_s:
            return False
        transitions = int(spec.get("leaseTransitions") or 0) + (holder != self.identity)
        wanted = lease | {"spec": spec | self._spec(transitions) | {"acquireTime": _micro_time()}}
        sent_s = self.clock()
        try:
            self._held = await self.client.replace(wanted)
        except ConflictError:
            return False
        self._renewed_s = sent_s
        return True

    async def _create(self) -> bool:
        manifest = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": self._spec(0) | {"acquireTime": _micro_time()},
        }
        sent_s = self.clock()
        try:
            self._held = await self.client.create(manifest)
        except ConflictError:
            return False
        self._renewed_s = sent_s
        return True

    async def _renew(self) -> None:
        assert self._held is not None
        spec = self._held["spec"] | {"renewTime": _micro_time()}
        sent_s = self.clock()
        try:
            self._held = await self.client.replace(self._held | {"spec": spec})
            self._renewed_s = sent_s
        except ConflictError:
            lease = await self.client.get(LEASE, self.name, self.namespace)
            if (lease.get("spec") or {}).get("holderIdentity") != self.identity:
                raise LeadershipLostError(f"{self.identity}: another one leads") from None
            # Not renewed yet, for nothing of ours was written: the next try is with this version.
            self._held = lease

    def _spec(self, transitions: int) -> dict[str, Any]:
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": int(self.duration_s),
            "renewTime": _micro_time(),
            "leaseTransitions": transitions,
        }


def _micro_time() -> str:
    """MicroTime wants six fractional digits always. For humans: no decision is made from it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
