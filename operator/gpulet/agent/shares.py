"""Shares made true and undone: prepare and unprepare of claims, in any state, after any crash.

Nothing here talks to the API server, nothing is remembered but in files: a call that was killed is simply made again.
"""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpulet.agent import cdi
from gpulet.agent.checks import refusal
from gpulet.agent.claims import ClaimRecord, ClaimRefusedError, ClaimStore, record_of
from gpulet.agent.daemons import Daemons
from gpulet.agent.devices import NodeDevice, inventory
from gpulet.agent.waiting import Deadline, node_lock
from gpulet.nvidia.mps import MpsError
from gpulet.nvidia.source import DeviceSource

_CONFLICT_PATIENCE_S = 10.0
"""A share that is about to be freed is waited for: the kubelet tries again only 87 s after an error."""
_CONFLICT_POLL_S = 0.5


def _pass(step: str) -> None:
    """Called between any two steps; tests kill the process there."""


class Shares:
    """All shares of this node."""

    def __init__(
        self,
        *,
        node: str,
        source: DeviceSource,
        daemons: Daemons,
        state: Path,
        cdi_folder: Path,
        reached: Callable[[str], None] = _pass,
    ) -> None:
        self.node = node
        self.source = source
        self.daemons = daemons
        self.store = ClaimStore(state / "claims")
        self._lock = state / "lock"
        self._cdi = cdi_folder
        self._reached = reached

    def devices(self) -> dict[tuple[str, str], NodeDevice]:
        """By (pool, name), as published."""
        return inventory(self.node, self.source.gpus())

    def prepare(self, claim: dict[str, Any], uid: str, deadline: Deadline) -> ClaimRecord:
        """Makes an allocated claim's share true; the same again for a prepared one.

        Raises ClaimRefusedError, DeviceError, MpsError, DeadlineError; what was begun is then finished by the next
        call, or undone by unprepare.
        """
        patience = Deadline(min(_CONFLICT_PATIENCE_S, deadline.remaining_s))
        while True:
            with node_lock(self._lock, deadline):
                devices = self.devices()
                record = self._remembered(uid) or record_of(claim, uid, self.source.boot_id(), devices)
                device = devices.get((record.pool, record.device))
                reason = self._refusal(record, device, devices)
                if reason is None and device is not None:
                    return self._make(record, device, deadline)
            if patience.remaining_s <= 0:
                raise ClaimRefusedError(f"ResourceClaim {record.namespace}/{record.name}: {reason}")
            time.sleep(_CONFLICT_POLL_S)

    def _remembered(self, uid: str) -> ClaimRecord | None:
        """The claim's file, void after a boot: then nothing that it tells of exists any more."""
        record = self.store.read(uid)
        return record if record is not None and record.boot_id == self.source.boot_id() else None

    def _refusal(
        self, record: ClaimRecord, device: NodeDevice | None, devices: dict[tuple[str, str], NodeDevice]
    ) -> str | None:
        if device is None:
            return f"device {record.device} of pool {record.pool} is no longer published by this node"
        others = []
        for other in self.store.all():
            place = devices.get((other.pool, other.device))
            if place is not None:
                others.append((other, place))
            elif other.gpu == record.gpu and other.uid != record.uid:
                return f"GPU {record.gpu} is in another MIG mode than {other.device} of {other.namespace}/{other.name}"
        return refusal(record, device, others)

    def _make(self, record: ClaimRecord, device: NodeDevice, deadline: Deadline) -> ClaimRecord:
        self.store.write(record.at("intended"))
        self._reached("intended")
        if device.placement is None:
            self.source.set_exclusive(record.gpu, True)
            mps_uuid = record.gpu
        else:
            mps_uuid = self.source.create_instance(record.gpu, device.placement).uuid
        self._reached("device")
        record = record.at("device", mps_uuid)
        self.store.write(record)
        self._reached("device-recorded")
        self.daemons.ensure(mps_uuid, deadline, self._reached)
        self._reached("daemon")
        record = record.at("daemon")
        self.store.write(record)
        edits = self.source.container_edits(record.gpu, mps_uuid if device.placement else None)
        cdi.write(self._cdi, record.uid, cdi.spec(record, self.daemons.folders(mps_uuid), self.source.name, edits))
        self._reached("cdi")
        record = record.at("ready")
        self.store.write(record)
        self._reached("ready")
        return record

    def unprepare(self, uid: str, deadline: Deadline) -> None:
        """Undoes a claim's share, finished or not; an unknown claim is success. Raises as prepare does."""
        with node_lock(self._lock, deadline):
            cdi.remove(self._cdi, uid)
            self._reached("cdi-gone")
            record = self.store.read(uid)
            if record is None:
                return
            if not any(o.same_device(record) for o in self.store.all() if o.uid != uid):
                self._release(record, deadline)
            self.store.remove(uid)
            self._reached("claim-gone")

    def _release(self, record: ClaimRecord, deadline: Deadline) -> None:
        """The last share of a device goes. Everything is found anew: the file may be older than the last effect."""
        usable = any(g.uuid == record.gpu and g.health != "lost" for g in self.source.gpus())
        for uuid in self._daemon_uuids(record, usable):
            self.daemons.withdraw(uuid, deadline, self._reached)
        self._reached("daemon-files-gone")
        if not usable:
            # What was set on a lost GPU went with it; the pod must be able to end all the same.
            return
        if record.profile is None or record.start is None:
            self.source.set_exclusive(record.gpu, False)
        else:
            self.source.destroy_instance(record.gpu, record.profile, record.start)
        self._reached("device-gone")

    def _daemon_uuids(self, record: ClaimRecord, usable: bool) -> set[str]:
        """What the daemon of the claim's device may be called: as recorded, and as the device is called now."""
        if record.profile is None:
            return {record.gpu}
        instances = self.source.instances(record.gpu) if usable else ()
        found = {i.uuid for i in instances if (i.profile, i.start) == (record.profile, record.start)}
        return found | ({record.mps_uuid} if record.mps_uuid else set())

    def settle(self, uuids: set[str], deadline: Deadline) -> None:
        """Daemons that were started again get their settings; one that is not up yet is left to the next look."""
        for uuid in uuids:
            if not self.daemons.settled(uuid):
                with node_lock(self._lock, deadline), contextlib.suppress(MpsError):
                    self.daemons.apply(uuid)

    def sweep(self, deadline: Deadline) -> list[str]:
        """Removes CDI files and daemons that belong to no claim; returns what it removed.

        They are left where a node's state folder was lost, or a boot came between: nothing else would remove them.
        """
        with node_lock(self._lock, deadline):
            records = self.store.all()
            # A record from before a boot names a daemon that no longer is one of this boot's devices.
            boot = self.source.boot_id()
            held = {r.mps_uuid or r.gpu for r in records if r.boot_id == boot}
            orphans = cdi.written(self._cdi).keys() - {r.uid for r in records}
            for uid in orphans:
                cdi.remove(self._cdi, uid)
            lonely = self.daemons.leftovers() - held
            for uuid in lonely:
                self.daemons.withdraw(uuid, deadline, self._reached)
        return sorted([*orphans, *lonely])
