"""Replicas outside the plan that carry a model's traffic while its place is not free yet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gpulet.model.demand import ModelId
from gpulet.model.device import Device, Gpu
from gpulet.model.plan import Slot
from gpulet.planner.ground import Ground, bits_of
from gpulet.planner.packing import GpuKey, key_of

MOST = 16
"""Places that are looked at for one shape of replica."""
_STARTS = 2
"""Of these, on one GPU."""


def stand_ins(ground: Ground, state: int, moving: int) -> list[int]:
    """Replicas (by index) that could stand in, beside all of a state, for the models of ``moving``.

    Of a model's present and planned shapes each, on every GPU that has room; of GPUs that are alike and empty, one.
    """
    found: list[int] = []
    ground.go_to(state)
    for model in sorted({m for i in bits_of(moving) for m in ground.slots[i].models}):
        own = (state | ground.goal) & ground.of_model[model]
        shapes = {_shape(ground.slots[i]): ground.gpu_of(i).product for i in bits_of(own)}
        for shape, product in sorted(shapes.items(), key=lambda item: repr(item[0])):
            places = _places(ground, state, model, shape, product)
            found += [t for t, _ in zip(places, range(MOST), strict=False)]
    return sorted(set(found))


def copies(ground: Ground, state: int, leaving: int, *, gpu: GpuKey) -> int:
    """One copy of each replica of ``leaving`` on other GPUs than ``gpu``, all side by side; 0 if they do not fit."""
    found = 0
    for i in bits_of(leaving):
        ground.go_to(state | found)
        for model in ground.slots[i].models[:1]:
            places = _places(ground, state | found, model, _shape(ground.slots[i]), ground.gpu_of(i).product)
            t = next((t for t in places if key_of(ground.slots[t].device) != gpu), None)
            if t is None:
                return 0
            found |= 1 << t
    return found


def _shape(slot: Slot) -> Slot:
    """A replica without its place; of a MIG instance the profile is kept."""
    return replace(slot, device=Device("", "", slot.device.profile, None), ordinal=0)


def _places(ground: Ground, state: int, model: ModelId, shape: Slot, product: str) -> Iterator[int]:
    empty_kinds = set()
    for gpu in _tightest_first(ground, state, model):
        if gpu.product != product:
            continue
        if not ground.of_gpu[key_of(gpu)] & (state | ground.goal):
            kind = ground.fleet.signature[key_of(gpu)]
            if kind in empty_kinds:
                continue
            empty_kinds.add(kind)
        if shape.device.profile is None and shape.compute_percent > ground.packing.rooms[key_of(gpu)].percent:
            continue  # most have no room: that is seen at once
        tried = 0
        for device in _devices(ground, gpu, shape):
            slot = replace(shape, device=device)
            if tried < _STARTS and ground.packing.fits(slot):
                tried += 1
                t = _index(ground, state, slot)
                if not ground.goal >> t & 1:
                    yield t


def _tightest_first(ground: Ground, state: int, model: ModelId) -> list[Gpu]:
    """GPUs on which no planned replica waits for room come first, the fuller before the emptier."""

    def rank(gpu: Gpu) -> tuple[bool, float, tuple[str, str]]:
        awaited = ground.of_gpu[key_of(gpu)] & ground.goal & ~state
        return (bool(awaited), ground.packing.rooms[key_of(gpu)].idle, key_of(gpu))

    return sorted(ground.fleet.allowed[model], key=rank)


def _devices(ground: Ground, gpu: Gpu, shape: Slot) -> list[Device]:
    """The whole GPU, or the placements of a profile, those first that spoil fewest others."""
    if shape.device.profile is None:
        return [Device(gpu.node, gpu.uuid)]
    starts = ground.packing.rooms[key_of(gpu)].starts_of(shape.device.profile)
    return [Device(gpu.node, gpu.uuid, p.profile, p.start) for _, p in starts]


def _index(ground: Ground, state: int, slot: Slot) -> int:
    """With the lowest ordinal that no replica which exists or is planned has there."""
    taken = {
        ground.slots[i].ordinal
        for i in bits_of(ground.of_model[slot.model] & (state | ground.goal))
        if ground.slots[i].device == slot.device
    }
    return ground.index(replace(slot, ordinal=next(n for n in range(len(taken) + 1) if n not in taken)))
