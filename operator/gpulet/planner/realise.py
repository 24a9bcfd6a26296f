"""Numbers of replicas per GPU become slots: existing ones stay, new ones get placements of an enumerated layout."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpulet.model.demand import ModelId
from gpulet.model.device import Device, Placement
from gpulet.model.plan import Slot
from gpulet.planner.assign import slot_of
from gpulet.planner.layouts import arrangement
from gpulet.planner.packing import GpuKey, Packing, slot_order
from gpulet.planner.throughput import Option

Place = tuple[ModelId, Option, GpuKey]
Places = Mapping[Place, Sequence[Slot]]
"""Existing slots that may stay, by model, option and GPU."""


@dataclass(frozen=True)
class _Part:
    """What one GPU gets of one model."""

    model: ModelId
    option: Option
    replicas: int
    existing: tuple[Slot, ...]
    """At most ``replicas``."""


def realised(packing: Packing, replicas: Mapping[Place, int], places: Places) -> Packing | None:
    """The packing with slots for all replicas; None if they do not hold on concrete devices (a refused placement)."""
    by_gpu: dict[GpuKey, list[_Part]] = defaultdict(list)
    for (model, option, key), number in sorted(replicas.items()):
        existing = sorted(places.get((model, option, key), ()), key=slot_order)[:number]
        by_gpu[key].append(_Part(model, option, number, tuple(existing)))
    for key, parts in by_gpu.items():
        for slot in _slots_on(packing, key, parts):
            if not packing.fits(slot):
                return None
            packing.add(slot)
    wanted = sum(replicas.values())
    return packing if sum(len(slots) for slots in packing.slots.values()) == wanted else None


def _slots_on(packing: Packing, key: GpuKey, parts: list[_Part]) -> list[Slot]:
    """Slots of one GPU; fewer than asked for if no layout has the placements."""
    free = _placements(packing, key, parts)
    stay: dict[ModelId, list[Slot]] = defaultdict(list)
    for part in parts:
        for slot in part.existing:
            placement = packing.placement(slot.device)
            if placement is None or placement in free:
                stay[part.model].append(slot)
                free = [p for p in free if p != placement]
    result = [slot for slots in stay.values() for slot in slots]
    for part in parts:
        for _ in range(part.replicas - len(stay[part.model])):
            spot = next((p for p in free if p.profile == part.option.mig), None)
            if part.option.mig and spot is None:
                return []
            result.append(_new(packing, key, part, spot, result))
            free = [p for p in free if p != spot]
    return result


def _placements(packing: Packing, key: GpuKey, parts: list[_Part]) -> list[Placement]:
    """Placements for all MIG replicas of a GPU, those of existing slots where possible."""
    gpu, taken = packing.rooms[key].gpu, packing.rooms[key].taken
    wanted: dict[str, int] = defaultdict(int)
    for part in parts:
        if part.option.mig:
            wanted[part.option.mig] += part.replicas
    preferred = {packing.placement(slot.device) for part in parts for slot in part.existing} - {None}
    layout = arrangement(
        wanted,
        gpu.placements,
        gpu.compute_slices,
        tuple(sorted(taken)),
        frozenset(p for p in preferred if p is not None),
    )
    return list(layout or ())


def _new(packing: Packing, key: GpuKey, part: _Part, spot: Placement | None, beside: list[Slot]) -> Slot:
    device = Device(*key) if spot is None else Device(*key, spot.profile, spot.start)
    used = {slot.ordinal for slot in beside if slot.model == part.model and slot.device == device}
    ordinal = next(n for n in range(len(used) + 1) if n not in used)
    return slot_of(part.model, part.option, device, packing.demands[part.model], ordinal)
