"""The agent's slow loop: daemons that were restarted get their settings, claims get their conditions, and clients of
pods that are about to be killed are ended in order.

Runs in one agent of the node, also while two serve the kubelet during a rolling update.
"""

import asyncio
import contextlib
import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path

from gpulet.agent import cdi
from gpulet.agent.claims import ClaimRecord
from gpulet.agent.conditions import device_key, status_manifest
from gpulet.agent.observe import clients_of
from gpulet.agent.said import Said
from gpulet.agent.shares import Shares
from gpulet.agent.vanished import Vanished
from gpulet.agent.verify import ENFORCED, ClientSeen, facts, pod_uses
from gpulet.agent.waiting import Deadline, DeadlineError
from gpulet.kube.client import Client
from gpulet.kube.errors import KubeError, NotFoundError
from gpulet.kube.informer import Informer
from gpulet.kube.kinds import POD, RESOURCE_CLAIM
from gpulet.metrics.node import NodeMetrics, ShareSeen
from gpulet.nvidia.mps import MpsError
from gpulet.nvidia.source import DeviceError
from gpulet.status.conditions import Fact

log = logging.getLogger("gpulet.watcher")

_TERMINATE_BEFORE_S = 2.0
"""A client's work is ended this long before its pod's grace period is over: SIGKILL under it harms neighbours."""
_LOCK_S = 2.0


class Watcher:
    """Looks at all shares of the node every period, and at once when told."""

    def __init__(self, client: Client, shares: Shares, metrics: NodeMetrics, *, proc: Path, period_s: float) -> None:
        self._metrics = metrics
        self._vanished = Vanished(client, shares)
        self._client = client
        self._shares = shares
        self._proc = proc
        self._period_s = period_s
        self._wake = asyncio.Event()
        self._said = Said(log)
        self._told: dict[str, list[Fact]] = {}
        self._terminated: set[str] = set()
        self.pods = Informer(client, POD, changed=self.wake, fields=f"spec.nodeName={shares.node}")

    def wake(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        await self.pods.synced.wait()
        while True:
            self._wake.clear()
            try:
                await self.look()
            except (KubeError, MpsError, DeviceError, DeadlineError, OSError) as error:
                self._said.trouble("looking at the shares", error)
            else:
                self._said.well("looking at the shares")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), self._next_s())
            # Pods change in bursts; one look serves them all.
            await asyncio.sleep(min(1.0, self._period_s))

    def _next_s(self) -> float:
        now = datetime.now(UTC)
        due = [(when - now).total_seconds() for uid, when in self._due() if uid not in self._terminated]
        return max(0.05, min([self._period_s, *due]))

    def _due(self) -> list[tuple[str, datetime]]:
        """When the clients of each terminating pod are to be ended."""
        result = []
        for pod in self.pods.objects.values():
            metadata = pod["metadata"]
            if metadata.get("deletionTimestamp"):
                end = datetime.fromisoformat(metadata["deletionTimestamp"])
                margin = min(_TERMINATE_BEFORE_S, (metadata.get("deletionGracePeriodSeconds") or 0) / 2)
                result.append((metadata["uid"], end - timedelta(seconds=margin)))
        return result

    async def look(self) -> None:
        """One look at everything; raises KubeError and the like, the next look makes good."""
        everything = await asyncio.to_thread(self._shares.store.all)
        records = [r for r in everything if r.step == "ready" and r.mps_uuid is not None]
        daemons = {r.mps_uuid: r.gpu for r in records if r.mps_uuid}
        restarted = {uuid for uuid in daemons if not self._shares.daemons.settled(uuid)}
        for uuid in restarted:
            self._metrics.restarts.labels(daemons[uuid]).inc()
        clients = await asyncio.to_thread(self._settle_and_list, daemons)
        await asyncio.to_thread(self._terminate, clients)
        devices = await asyncio.to_thread(self._shares.devices)
        uses = pod_uses(self.pods.objects.values())
        seen: dict[str, list[Fact]] = {}
        for record in records:
            device = devices.get((record.pool, record.device))
            seen[record.uid] = facts(
                record,
                source=self._shares.source.name,
                # Told once even if it is over already: the share's processes ended with their daemon.
                settled=record.mps_uuid not in restarted,
                clients=clients[str(record.mps_uuid)],
                uses=uses.get((record.namespace, record.name), []),
                millicores=device.millicores if device else 0,
                environment=cdi.environment(record, self._shares.source.name),
            )
        await self._tell_all(records, seen)
        if restarted:
            self.wake()
        self._terminated &= {uid for uid, _ in self._due()}
        await self._vanished.look(everything, uses)

    async def _tell_all(self, records: list[ClaimRecord], seen: dict[str, list[Fact]]) -> None:
        for record in records:
            what = f"conditions of claim {record.namespace}/{record.name}"
            if self._told.get(record.uid) != seen[record.uid]:
                try:
                    await self._tell(record, seen[record.uid])
                except KubeError as error:
                    # One claim that cannot be written must not keep the others from being told.
                    self._said.trouble(what, error)
                    continue
            self._said.well(what)
        self._told = {uid: told for uid, told in self._told.items() if uid in seen}
        self._metrics.shares(_share(record, seen[record.uid]) for record in records)

    def _settle_and_list(self, daemons: dict[str, str]) -> dict[str, list[ClientSeen]]:
        self._shares.settle(daemons, Deadline(_LOCK_S))
        return {uuid: clients_of(self._shares.daemons, uuid, self._proc) for uuid in daemons}

    def _terminate(self, clients: dict[str, list[ClientSeen]]) -> None:
        now = datetime.now(UTC)
        due = {uid for uid, when in self._due() if when <= now and uid not in self._terminated}
        for uuid, seen in clients.items():
            control = self._shares.daemons.control(uuid)
            for client in seen:
                if client.pod_uid in due:
                    server = control.clients().get(client.pid)
                    ended = server is not None and control.terminate_client(server, client.pid)
                    log.info(
                        "client %d of pod %s: terminated before its grace ends: %s", client.pid, client.pod_uid, ended
                    )
        self._terminated |= due

    async def _tell(self, record: ClaimRecord, found: list[Fact]) -> None:
        """Writes the claim's conditions if they differ from what it says."""
        try:
            claim = await self._client.get(RESOURCE_CLAIM, record.name, record.namespace)
        except NotFoundError:
            return
        if claim["metadata"]["uid"] != record.uid:
            return
        key = device_key(pool=record.pool, device=record.device, share_id=record.share_id)
        manifest = status_manifest(claim, key, found, now=datetime.now(UTC))
        if manifest is not None:
            try:
                await self._client.apply_status(manifest)
            except NotFoundError:
                return
            log.info(
                "claim %s/%s: %s",
                record.namespace,
                record.name,
                "; ".join(f"{f.type}={f.status} {f.reason}" for f in found),
            )
        self._told[record.uid] = found


def _share(record: ClaimRecord, found: list[Fact]) -> ShareSeen:
    enforced = next((f for f in found if f.type == ENFORCED), None)
    return ShareSeen(
        record.namespace,
        record.name,
        record.gpu,
        record.device,
        record.compute_percent,
        record.memory_mib,
        enforced.status if enforced else "Unknown",
        enforced.reason if enforced else "",
    )
