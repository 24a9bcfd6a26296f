"""Slots on concrete GPUs: what is taken, what still fits, and a way back.

All quantities are integers (percent, MiB, clients, millicores): a boundary is met exactly, never by a rounded fraction.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from gpulet.model.demand import Demand, Isolation, ModelId
from gpulet.model.device import Device, Gpu, Placement
from gpulet.model.plan import Problem, Slot, Usage
from gpulet.planner.eligibility import Rules
from gpulet.planner.layouts import fits_beside

GpuKey = tuple[str, str]
"""Node name and UUID."""


def key_of(device: Device | Gpu) -> GpuKey:
    return (device.node, device.gpu if isinstance(device, Device) else device.uuid)


def slot_order(slot: Slot) -> tuple[object, ...]:
    """A total order of slots (fields that may be None do not compare)."""
    device = slot.device
    return (
        slot.model,
        device.node,
        device.gpu,
        device.profile or "",
        -1 if device.start is None else device.start,
        slot.compute_percent,
        slot.memory_mib,
        slot.clients,
        slot.batch,
        slot.instances,
        slot.queue_delay_us,
        slot.artifact or "",
        slot.ordinal,
        slot.cycle_us,
        tuple((t.model, t.batch, t.busy_us, t.artifact or "") for t in slot.turns),
    )


@dataclass
class Room:
    """What is free on one GPU."""

    gpu: Gpu
    percent: int = 100
    memory_mib: int = 0
    clients: int = 0
    tenants: list[tuple[str, Isolation]] = field(default_factory=list)
    """Namespace and isolation of every share of the whole GPU."""
    taken: list[Placement] = field(default_factory=list)
    """MIG placements in use."""
    whole_blocked: bool = False
    """Used by tuning, profiling or a MIG instance of someone else."""
    slots: int = 0
    starts: dict[str, list[tuple[int, Placement]]] = field(default_factory=dict)
    """Per MIG profile the possible placements, best first, as long as ``taken`` stays as it is."""

    def starts_of(self, profile: str) -> list[tuple[int, Placement]]:
        """Possible placements of a profile, each with the memory slices of all placements that stay possible beside it.

        The start that spoils fewest others comes first (taking the lowest free one blocks larger profiles later).
        """
        if profile not in self.starts:
            gpu = self.gpu
            found = [
                p for p in gpu.placements if p.profile == profile and fits_beside(p, self.taken, gpu.compute_slices)
            ]
            ranked = [(self._left(placement), placement) for placement in found]
            self.starts[profile] = sorted(ranked, key=lambda pair: (-pair[0], pair[1].start))
        return self.starts[profile]

    @property
    def idle(self) -> float:
        """The part of the GPU's compute that nothing uses, 0 to 1."""
        if not self.taken:
            return self.percent / 100
        return 1 - sum(p.compute_slices for p in self.taken) / self.gpu.compute_slices

    def _left(self, placement: Placement) -> int:
        taken = [*self.taken, placement]
        return sum(p.size for p in self.gpu.placements if fits_beside(p, taken, self.gpu.compute_slices))

    @property
    def used_whole(self) -> bool:
        return bool(self.tenants)


def may_share(namespace: str, isolation: Isolation, other_namespace: str, other_isolation: Isolation) -> bool:
    """Whether two shares may be in one fault domain: both have to agree."""
    if "None" in (isolation, other_isolation):
        return False
    if "Namespace" in (isolation, other_isolation):
        return namespace == other_namespace
    return True


@dataclass
class Host:
    """What a node's host still gives to our pods."""

    cpu_millicores: int
    memory_mib: int
    pods: int


def share_millicores(gpu: Gpu, placement: Placement | None, percent: int) -> int:
    """CPU that stands for a share of a simulated device, rounded up; 0 on a real one."""
    device = gpu.simulated_millicores
    if placement is not None:
        device = device * placement.compute_slices // gpu.compute_slices
    return -(-device * percent // 100)


class Packing:
    """A set of slots on the GPUs of a problem. ``mark`` and ``back_to`` undo; nothing else remembers."""

    def __init__(self, problem: Problem, rules: Rules, ignore: frozenset[str] = frozenset()) -> None:
        """``ignore``: limits to overlook, to find out which of them is in the way."""
        self.rules = rules
        self.ignore = ignore
        self.demands = {demand.model: demand for demand in problem.demands}
        self.rooms: dict[GpuKey, Room] = {}
        self.placements: dict[GpuKey, dict[tuple[str, int], Placement]] = {}
        tables: dict[int, dict[tuple[str, int], Placement]] = {}  # large fleets have few different tables
        for gpu in sorted(problem.gpus, key=key_of):
            self.rooms[key_of(gpu)] = Room(gpu, memory_mib=gpu.memory_mib, clients=gpu.clients)
            if id(gpu.placements) not in tables:
                tables[id(gpu.placements)] = {(p.profile, p.start): p for p in gpu.placements}
            self.placements[key_of(gpu)] = tables[id(gpu.placements)]
        self.hosts = {n.name: Host(n.free_cpu_millicores, n.free_memory_mib, n.free_pods) for n in problem.nodes}
        self.slots: dict[ModelId, list[Slot]] = defaultdict(list)
        self.open: set[GpuKey] = set()
        """GPUs that hold at least one slot."""
        self._journal: list[tuple[bool, Slot]] = []
        for usage in problem.usages:
            self._occupy(usage)

    def _occupy(self, usage: Usage) -> None:
        room = self.rooms.get(key_of(usage.device))
        if room is None:
            return
        if usage.device.profile is not None:
            placement = self.placement(usage.device)
            if placement is not None and placement not in room.taken:
                room.taken.append(placement)
            room.whole_blocked = True
            return
        room.percent -= usage.compute_percent
        room.memory_mib -= usage.memory_mib
        room.clients -= usage.clients
        room.tenants.append((usage.namespace, usage.isolation))
        # A candidate kernel of a tuner may take its neighbours down, and a measurement must not have any.
        if usage.purpose in ("tune", "profile"):
            room.whole_blocked = True

    def placement(self, device: Device) -> Placement | None:
        """The placement a device names, if its GPU offers it now."""
        if device.profile is None or device.start is None:
            return None
        return self.placements.get(key_of(device), {}).get((device.profile, device.start))

    def fits(self, slot: Slot) -> bool:
        """Whether the slot can be added."""
        demand = self.demands[slot.model]
        room = self.rooms.get(key_of(slot.device))
        if room is None or self.rules.refuses(slot.model, slot.device):
            return False
        on_device = self._fits_placement(room, slot) if slot.device.profile else self._fits_whole(room, slot, demand)
        return on_device and self._fits_host(room.gpu, slot, demand)

    def _fits_placement(self, room: Room, slot: Slot) -> bool:
        placement = self.placement(slot.device)
        return (
            placement is not None
            and not room.used_whole
            and fits_beside(placement, room.taken, room.gpu.compute_slices)
            and (slot.memory_mib <= placement.memory_mib or "memory" in self.ignore)
            and (slot.clients <= placement.clients or "clients" in self.ignore)
        )

    def _fits_whole(self, room: Room, slot: Slot, demand: Demand) -> bool:
        if not room.gpu.whole or room.taken or room.whole_blocked:
            return False
        space = (
            slot.compute_percent <= room.percent
            and (slot.memory_mib <= room.memory_mib or "memory" in self.ignore)
            and (slot.clients <= room.clients or "clients" in self.ignore)
        )
        return space and (
            "isolation" in self.ignore
            or all(may_share(slot.model.namespace, demand.isolation, *tenant) for tenant in room.tenants)
        )

    def _fits_host(self, gpu: Gpu, slot: Slot, demand: Demand) -> bool:
        host = self.hosts.get(gpu.node)
        if host is None:
            return False
        cpu, memory_mib = self._host_needs(gpu, slot, demand)
        return "host" in self.ignore or (
            cpu <= host.cpu_millicores and memory_mib <= host.memory_mib and host.pods >= 1
        )

    def _host_needs(self, gpu: Gpu, slot: Slot, demand: Demand) -> tuple[int, int]:
        served = [self.demands[model] for model in slot.models] if slot.turns else [demand]
        memory_mib = sum(one.host_memory_mib for one in served)
        if gpu.simulated_millicores:
            return share_millicores(gpu, self.placement(slot.device), slot.compute_percent), memory_mib
        return sum(one.host_cpu_millicores for one in served), memory_mib

    def add(self, slot: Slot) -> None:
        """Take the slot's room; the caller has asked ``fits``."""
        self._change(slot, 1)
        self.slots[slot.model].append(slot)
        self._journal.append((True, slot))

    def remove(self, slot: Slot) -> None:
        self._change(slot, -1)
        self.slots[slot.model].remove(slot)
        self._journal.append((False, slot))

    def _change(self, slot: Slot, sign: int) -> None:
        room, demand = self.rooms[key_of(slot.device)], self.demands[slot.model]
        room.slots += sign
        if room.slots:
            self.open.add(key_of(room.gpu))
        else:
            self.open.discard(key_of(room.gpu))
        if slot.device.profile is None:
            room.percent -= sign * slot.compute_percent
            room.memory_mib -= sign * slot.memory_mib
            room.clients -= sign * slot.clients
            _toggle(room.tenants, (slot.model.namespace, demand.isolation), sign)
        else:
            placement = self.placement(slot.device)
            assert placement is not None
            _toggle(room.taken, placement, sign)
            room.starts.clear()
        cpu, memory_mib = self._host_needs(room.gpu, slot, demand)
        host = self.hosts[room.gpu.node]
        host.cpu_millicores -= sign * cpu
        host.memory_mib -= sign * memory_mib
        host.pods -= sign

    def remove_all(self, model: ModelId) -> None:
        for slot in tuple(self.slots[model]):
            self.remove(slot)

    def mark(self) -> int:
        return len(self._journal)

    def back_to(self, mark: int) -> None:
        """Undo everything since the mark."""
        while len(self._journal) > mark:
            added, slot = self._journal[-1]
            if added:
                self.remove(slot)
            else:
                self.add(slot)
            del self._journal[-2:]

    def all_slots(self) -> tuple[Slot, ...]:
        return tuple(sorted((s for found in self.slots.values() for s in found), key=slot_order))


def _toggle(values: list[Any], value: object, sign: int) -> None:
    if sign > 0:
        values.append(value)
    else:
        values.remove(value)
