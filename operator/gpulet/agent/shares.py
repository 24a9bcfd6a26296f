"""Shares made true and undone: prepare and unprepare of claims, in any state, after any crash.

Nothing here talks to the API server, nothing is remembered but in files: a call that was killed is simply made again.
"""

import contextlib
import logging
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from gpulet.agent import cdi
from gpulet.agent.checks import out_of_range, refusal
from gpulet.agent.claims import ClaimRecord, ClaimRefusedError, ClaimStore, record_of
from gpulet.agent.daemons import Daemons
from gpulet.agent.devices import NodeDevice, inventory
from gpulet.agent.files import remove_halves
from gpulet.agent.instances import KeptInstances
from gpulet.agent.waiting import Deadline, DeadlineError, lock
from gpulet.agent.withdrawn import Withdrawn
from gpulet.nvidia.mps import MpsError
from gpulet.nvidia.source import DeviceError, DeviceSource

log = logging.getLogger("gpulet.shares")

_CONFLICT_PATIENCE_S = 10.0
"""A share that is about to be freed is waited for: the kubelet tries again only 87 s after an error."""
_CONFLICT_POLL_S = 0.5


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
        idle_instance_s: float = 0.0,
        adopt_instances: bool = False,
    ) -> None:
        """``idle_instance_s``: how long a MIG instance is kept that no share uses; ``adopt_instances``: those that
        somebody else made are ours."""
        self.node = node
        self.source = KeptInstances(source, state / "instances", idle_s=idle_instance_s, adopt=adopt_instances)
        self.daemons = daemons
        self.store = ClaimStore(state / "claims")
        self.withdrawn = Withdrawn(state / "withdrawn.json")
        self._state = state
        self._cdi = cdi_folder

    def devices(self) -> dict[tuple[str, str], NodeDevice]:
        """By (pool, name), as published."""
        return inventory(self.node, self.source.gpus())

    def prepare(self, claim: dict[str, Any], uid: str, deadline: Deadline) -> ClaimRecord:
        """Makes an allocated claim's share true; the same again for a prepared one.

        Raises ClaimRefusedError, DeviceError, MpsError, DeadlineError, OSError; what was begun is then finished by the
        next call, or undone by unprepare.
        """
        patience = Deadline(min(_CONFLICT_PATIENCE_S, deadline.remaining_s))
        while True:
            record, device, reason = self._intend(claim, uid, deadline)
            if reason is None:
                break
            if patience.remaining_s <= 0:
                raise ClaimRefusedError(f"ResourceClaim {record.namespace}/{record.name}: {reason}")
            time.sleep(_CONFLICT_POLL_S)
        with self._lock_of(record.gpu, deadline):
            return self._make(record, device, deadline)

    def _intend(
        self, claim: dict[str, Any], uid: str, deadline: Deadline
    ) -> tuple[ClaimRecord, NodeDevice, str | None]:
        """Checks the claim against all others and writes it down, so that all others are checked against it."""
        devices = self.devices()
        asked = record_of(claim, uid, self.source.boot_id(), devices)
        device = devices[asked.pool, asked.device]
        never = out_of_range(asked, device)
        if never is not None:
            raise ClaimRefusedError(f"ResourceClaim {asked.namespace}/{asked.name}: {never}")
        known = self.store.read(uid)
        owner = self.withdrawn.read().get(asked.gpu)
        if owner is not None and (known is None or known.step != "ready"):
            raise ClaimRefusedError(
                f"ResourceClaim {asked.namespace}/{asked.name}: GPU {asked.gpu} is withdrawn ({owner.reason}): "
                f"{owner.message}"
            )
        if known is not None and known.boot_id == asked.boot_id and not known.same_share(asked):
            # Allocated anew under its old uid: what it had goes first.
            self.unprepare(uid, deadline)
        with self._lock_of_node(deadline):
            known = self.store.read(uid)
            # After a boot nothing that the file tells of exists any more.
            record = known if known is not None and known.boot_id == asked.boot_id else asked
            reason = self._refusal(record, device, devices)
            if reason is None and record.step != "ready":
                # A share that is true stays so on file: made again it must not look unfinished to the watcher.
                self.store.write(record.at("intended"))
        return record, device, reason

    def prepared(self, uid: str, deadline: Deadline) -> ClaimRecord | None:
        """The record of a claim whose share is true, for when the claim itself cannot be read (failure case F9)."""
        record = self.store.read(uid)
        if record is None or record.step != "ready" or record.boot_id != self.source.boot_id():
            return None
        device = self.devices().get((record.pool, record.device))
        if device is None:
            return None
        with self._lock_of(record.gpu, deadline):
            return self._make(record, device, deadline)

    def _lock_of_node(self, deadline: Deadline) -> AbstractContextManager[None]:
        """Held for a moment, to compare claims with each other."""
        return lock(self._state / "lock", deadline)

    def _lock_of(self, gpu: str, deadline: Deadline) -> AbstractContextManager[None]:
        """Held while one GPU is worked on: a daemon that does not come up delays no other GPU's shares."""
        return lock(self._state / f"lock-{gpu}", deadline)

    def _refusal(
        self, record: ClaimRecord, device: NodeDevice, devices: dict[tuple[str, str], NodeDevice]
    ) -> str | None:
        others = []
        for other in self.store.all():
            place = devices.get((other.pool, other.device))
            if place is not None:
                others.append((other, place))
            elif other.gpu == record.gpu and other.uid != record.uid:
                return f"GPU {record.gpu} is in another MIG mode than {other.device} of {other.namespace}/{other.name}"
        return refusal(record, device, others)

    def _make(self, record: ClaimRecord, device: NodeDevice, deadline: Deadline) -> ClaimRecord:
        if device.placement is None:
            self.source.set_exclusive(record.gpu, True)
            mps_uuid = record.gpu
        else:
            mps_uuid = self.source.create_instance(record.gpu, device.placement).uuid
        if record.mps_uuid != mps_uuid:
            record = record.at("device", mps_uuid)
            self.store.write(record)
        self.daemons.ensure(mps_uuid, deadline)
        edits = self.source.container_edits(record.gpu, mps_uuid if device.placement else None)
        cdi.write(self._cdi, record.uid, cdi.spec(record, self.daemons.folders(mps_uuid), self.source.name, edits))
        if record.step != "ready":
            record = record.at("ready")
            self.store.write(record)
        return record

    def unprepare(self, uid: str, deadline: Deadline) -> None:
        """Undoes a claim's share, finished or not; an unknown claim is success. Raises as prepare does."""
        cdi.remove(self._cdi, uid)
        record = self.store.read(uid)
        if record is None:
            self.store.remove(uid)
            return
        with self._lock_of(record.gpu, deadline):
            with self._lock_of_node(deadline):
                # Who comes now writes itself down first, and then waits for this GPU.
                last = not any(o.same_device(record) for o in self.store.all() if o.uid != uid)
            if last:
                self._release(record, deadline)
            self.store.remove(uid)

    def _release(self, record: ClaimRecord, deadline: Deadline) -> None:
        """The last share of a device goes. Everything is found anew: the file may be older than the last effect."""
        usable = any(g.uuid == record.gpu and g.health != "lost" for g in self.source.gpus())
        for uuid in self._daemon_uuids(record, usable):
            self.daemons.withdraw(uuid, deadline)
        if not usable:
            # What was set on a lost GPU went with it; the pod must be able to end all the same.
            return
        if record.profile is None or record.start is None:
            self.source.set_exclusive(record.gpu, False)
        else:
            self.source.destroy_instance(record.gpu, record.profile, record.start)

    def _daemon_uuids(self, record: ClaimRecord, usable: bool) -> set[str]:
        """What the daemon of the claim's device may be called: as recorded, and as the device is called now."""
        if record.profile is None:
            return {record.gpu}
        instances = self.source.instances(record.gpu) if usable else ()
        found = {i.uuid for i in instances if (i.profile, i.start) == (record.profile, record.start)}
        return found | ({record.mps_uuid} if record.mps_uuid else set())

    def settle(self, daemons: dict[str, str], deadline: Deadline) -> None:
        """Daemons that were started again get their settings; one that is not up yet is left to the next look.

        ``daemons``: GPU by the UUID that the daemon serves.
        """
        for uuid, gpu in daemons.items():
            if not self.daemons.settled(uuid):
                # A GPU that is being worked on for long must not keep the others waiting.
                with contextlib.suppress(MpsError, DeadlineError), self._lock_of(gpu, deadline):
                    self.daemons.apply(uuid)

    def sweep(self, deadline: Deadline) -> list[str]:
        """Removes CDI files, daemons and half-written files that belong to no claim; returns what it removed.

        They are left where a node's state folder was lost, or a boot came between: nothing else would remove them.
        A device that has a daemon's folder was ours, so its mode or instance is undone too. What still has clients,
        or a claim file that cannot be read, is somebody's and stays.
        """
        with self._lock_of_node(deadline):
            orphans = cdi.written(self._cdi).keys() - {r.uid for r in self.store.all()} - self.store.broken()
            for uid in orphans:
                cdi.remove(self._cdi, uid)
        lonely = [uuid for uuid in self.daemons.leftovers() - self._held() if self._forsake(uuid, deadline)]
        unused = self._reclaim(deadline)
        folders = (self.store.folder, self._state / "instances", self._cdi, self.daemons.root)
        return sorted([*orphans, *lonely, *unused, *(name for folder in folders for name in remove_halves(folder))])

    def _reclaim(self, deadline: Deadline) -> list[str]:
        """MIG instances that were kept long enough without a share."""
        removed = []
        for gpu in self.source.gpus():
            if gpu.health == "lost":
                continue
            with self._lock_of(gpu.uuid, deadline):
                held = {(r.profile, r.start) for r in self.store.all() if r.gpu == gpu.uuid}
                try:
                    removed += self.source.reclaim(gpu.uuid, held, self.daemons.leftovers())
                except DeviceError as error:
                    log.warning("unused MIG instances: %s", error)
        return removed

    def _held(self) -> set[str]:
        # A record from before a boot names a daemon that no longer is one of this boot's devices.
        boot = self.source.boot_id()
        return {r.mps_uuid or r.gpu for r in self.store.all() if r.boot_id == boot}

    def _forsake(self, uuid: str, deadline: Deadline) -> bool:
        """Whether the daemon of no claim was taken away."""
        usable = [gpu.uuid for gpu in self.source.gpus() if gpu.health != "lost"]
        instance = next(((g, i) for g in usable for i in self.source.instances(g) if i.uuid == uuid), None)
        with self._lock_of(instance[0] if instance else uuid, deadline):
            if uuid in self._held() or self.daemons.in_use(uuid):
                return False
            self.daemons.withdraw(uuid, deadline)
            if uuid in usable:
                self.source.set_exclusive(uuid, False)
            if instance:
                # The claims' files may be lost, and with them what else lies there: its daemon was ours, so it is.
                self.source.own(*instance)
                self.source.destroy_instance(instance[0], instance[1].profile, instance[1].start)
        return True
