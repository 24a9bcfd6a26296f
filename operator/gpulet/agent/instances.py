"""MIG instances as the agent keeps them: its own are remembered, nobody else's is ever changed.

An instance whose last share went is kept for a while, so that a restarted pod finds it; it gives way at once to any
share that needs its slices, a whole GPU's included. Which instances are ours is in one small file for each GPU,
written before an instance is made; it is void after a boot, as the instances are.
"""

import json
import logging
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gpulet.agent.files import remove, write_atomically
from gpulet.model.device import Placement
from gpulet.nvidia.mps import SourceName
from gpulet.nvidia.source import DeviceError, DeviceSource, GpuProcess, MigInstance, PhysicalGpu

log = logging.getLogger("gpulet.instances")


@dataclass(frozen=True)
class Kept:
    """An instance that shares of this node use, or used."""

    profile: str
    start: int
    uuid: str | None = None
    """None: about to be made."""
    idle_since: float | None = None
    """CLOCK_MONOTONIC in seconds; None: in use."""
    foreign: bool = False
    """It was there before and somebody else's: used, never removed."""

    def at(self, profile: str, start: int) -> bool:
        return (self.profile, self.start) == (profile, start)


class KeptInstances:
    """A source of GPUs that keeps instances. Calls for one GPU must not overlap (the caller holds the GPU's lock)."""

    def __init__(
        self,
        source: DeviceSource,
        folder: Path,
        *,
        idle_s: float = 0.0,
        adopt: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``idle_s``: how long an unused instance is kept. ``adopt``: instances that somebody else made are ours."""
        self._source = source
        self._folder = folder
        self._idle_s = idle_s
        self._adopt = adopt
        self._clock = clock

    @property
    def name(self) -> SourceName:
        return self._source.name

    def boot_id(self) -> str:
        return self._source.boot_id()

    def gpus(self) -> tuple[PhysicalGpu, ...]:
        return self._source.gpus()

    def instances(self, uuid: str) -> tuple[MigInstance, ...]:
        return self._source.instances(uuid)

    def exclusive(self, uuid: str) -> bool:
        return self._source.exclusive(uuid)

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        return self._source.processes(uuid)

    def container_edits(self, uuid: str, mig_uuid: str | None) -> dict[str, Any]:
        return self._source.container_edits(uuid, mig_uuid)

    def create_instance(self, uuid: str, placement: Placement) -> MigInstance:
        """The instance at this placement, whoever made it; what is unused and in its way goes first."""
        profile, start = placement.profile, placement.start
        existing = self._source.instances(uuid)
        kept = self._read(uuid, existing)
        there = next((i for i in existing if (i.profile, i.start) == (profile, start)), None)
        own = next((k for k in kept if k.at(profile, start)), None)
        if there is None:
            end = start + placement.size
            kept = self._make_room(uuid, kept, [i for i in existing if i.start < end and start < i.start + i.size])
            own = Kept(profile, start)
            kept = self._write(uuid, [*(k for k in kept if not k.at(profile, start)), own])
        elif own is None:
            own = Kept(profile, start, there.uuid, foreign=not self._adopt)
            self._refuse_if_used(uuid, there)
        made = self._source.create_instance(uuid, placement)
        now = replace(own, uuid=made.uuid, idle_since=None)
        if now not in kept:
            self._write(uuid, [*(k for k in kept if not k.at(profile, start)), now])
        return made

    def destroy_instance(self, uuid: str, profile: str, start: int) -> None:
        """No share uses it any more: it is kept for a while, if it is ours; somebody else's is left alone."""
        kept = self._read(uuid, self._source.instances(uuid))
        own = next((k for k in kept if k.at(profile, start)), None)
        others = [k for k in kept if k is not own]
        if own is not None and not own.foreign and self._idle_s > 0:
            try:
                self._write(uuid, [*others, replace(own, idle_since=self._clock())])
                return
            except OSError as error:
                log.warning("%s; %s at %d is removed at once", error, profile, start)
        if own is not None and not own.foreign:
            self._source.destroy_instance(uuid, profile, start)
        # A share must be able to end on a full disk too; what is on file of an instance that is gone does not count.
        with suppress(OSError):
            self._write(uuid, others)

    def set_exclusive(self, uuid: str, exclusive: bool) -> None:
        if exclusive:
            existing = self._source.instances(uuid)
            self._make_room(uuid, self._read(uuid, existing), existing)
        self._source.set_exclusive(uuid, exclusive)

    def own(self, uuid: str, instance: MigInstance) -> None:
        """It is ours, though no file says so any more."""
        kept = self._read(uuid, self._source.instances(uuid))
        others = [k for k in kept if not k.at(instance.profile, instance.start)]
        self._write(uuid, [*others, Kept(instance.profile, instance.start, instance.uuid)])

    def reclaim(self, uuid: str, held: Collection[tuple[str | None, int | None]], served: Collection[str]) -> list[str]:
        """Removes instances of ours that were unused for long enough; returns their names. Raises DeviceError.

        ``held``: (profile, start) of the shares that are written down; ``served``: instances with a daemon. One that
        is neither, though it counts as used, is unused from now on: the agent died, or the share's file was lost.
        """
        removed = []
        kept = self._read(uuid, self._source.instances(uuid))
        for own in list(kept):
            if (own.profile, own.start) in held or own.uuid in served:
                continue
            since = self._clock() if own.idle_since is None else own.idle_since
            if own.foreign or own.uuid is None or self._clock() - since >= self._idle_s:
                if not own.foreign:
                    self._source.destroy_instance(uuid, own.profile, own.start)
                    removed.append(own.uuid or f"{own.profile} at {own.start}")
                kept.remove(own)
            else:
                kept[kept.index(own)] = replace(own, idle_since=since)
        self._write(uuid, kept)
        return removed

    def idle(self, uuid: str) -> tuple[MigInstance, ...]:
        """What would give way to another share now."""
        existing = self._source.instances(uuid)
        idle = {k.uuid for k in self._read(uuid, existing) if k.idle_since is not None}
        return tuple(i for i in existing if i.uuid in idle)

    def _make_room(self, uuid: str, kept: list[Kept], in_the_way: Collection[MigInstance]) -> list[Kept]:
        """Removes unused instances of ours; raises DeviceError before any goes if one of them must stay."""
        for instance in in_the_way:
            own = next((k for k in kept if k.at(instance.profile, instance.start)), None)
            where = f"GPU {uuid}: MIG instance {instance.profile} at slice {instance.start}"
            if own is not None and own.idle_since is None and own.uuid is not None:
                raise DeviceError(f"{where} is in the way and in use by a share")
            if own is None and not self._adopt:
                raise DeviceError(
                    f"{where} is in the way and not Gpulet's; remove it with nvidia-smi mig, or let the agent adopt it "
                    "(adoptInstances)"
                )
            if own is None:
                self._refuse_if_used(uuid, instance)
        for instance in in_the_way:
            self._source.destroy_instance(uuid, instance.profile, instance.start)
            log.info("GPU %s: unused %s at %d gave way", uuid, instance.profile, instance.start)
            kept = self._write(uuid, [k for k in kept if not k.at(instance.profile, instance.start)])
        return kept

    def _refuse_if_used(self, uuid: str, instance: MigInstance) -> None:
        pids = [process.pid for process in self._source.processes(instance.uuid)] if instance.uuid else []
        if pids:
            raise DeviceError(
                f"GPU {uuid}: MIG instance {instance.profile} at slice {instance.start} is not Gpulet's and in use: "
                f"GPUBusy pids={','.join(map(str, pids))}"
            )

    def _path(self, uuid: str) -> Path:
        return self._folder / f"{uuid}.json"

    def _read(self, uuid: str, existing: Collection[MigInstance]) -> list[Kept]:
        """What is on file and still there; one that is about to be made need not be.

        One that lost its compute instance is ours too: its removal was cut short.
        """
        try:
            content = json.loads(self._path(uuid).read_text())
            kept = [Kept(**entry) for entry in content["instances"]]
            if content["boot_id"] != self.boot_id():
                return []
        except FileNotFoundError:
            return []
        except (ValueError, TypeError, KeyError) as error:
            log.error("%s cannot be read (%s): the GPU's instances count as somebody else's", self._path(uuid), error)
            return []
        there = {(i.profile, i.start, i.uuid) for i in existing}
        return [k for k in kept if k.uuid is None or there & {(k.profile, k.start, k.uuid), (k.profile, k.start, "")}]

    def _write(self, uuid: str, kept: list[Kept]) -> list[Kept]:
        """Only what differs from the file is written; a GPU without instances has none."""
        if not kept:
            remove(self._path(uuid))
            return kept
        text = json.dumps({"boot_id": self.boot_id(), "instances": [asdict(k) for k in kept]})
        if not self._path(uuid).exists() or self._path(uuid).read_text() != text:
            write_atomically(self._path(uuid), text)
        return kept
