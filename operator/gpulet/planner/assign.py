"""Options become slots on concrete devices: best fit, model by model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpulet.model.demand import Demand, ModelId
from gpulet.model.device import Device, Gpu, Placement
from gpulet.model.plan import Problem, Slot
from gpulet.planner.eligibility import Rules
from gpulet.planner.layouts import fits_beside
from gpulet.planner.packing import GpuKey, Packing, Room, key_of
from gpulet.planner.throughput import Option

Ways = Mapping[ModelId, Sequence[Option]]
"""The options of every model that has any."""


@dataclass(frozen=True)
class Fleet:
    """The GPUs as a decision sees them: who may use which, and what each costs."""

    allowed: Mapping[ModelId, tuple[Gpu, ...]]
    price: Mapping[GpuKey, float]
    signature: Mapping[GpuKey, tuple[object, ...]]
    """GPUs of equal signature are interchangeable while they are empty."""

    @staticmethod
    def of(problem: Problem, rules: Rules) -> Fleet:
        gpus = sorted(problem.gpus, key=key_of)
        demands = sorted(problem.demands, key=lambda d: d.model)
        allowed = {d.model: tuple(g for g in gpus if rules.why_not(d, g) is None) for d in demands}
        prices = dict(problem.policy.prices)
        occupied = {key_of(u.device) for u in problem.usages}
        refused = {key_of(d) for devices in rules.refused.values() for d in devices}
        signature: dict[GpuKey, tuple[object, ...]] = {}
        for gpu in gpus:
            key = key_of(gpu)
            users = tuple(m for m, found in allowed.items() if gpu in found)
            own = key if key in occupied or key in refused else ("", "")
            signature[key] = (gpu.node, own, gpu.product, gpu.memory_mib, gpu.clients, gpu.compute_slices, gpu.whole)
            signature[key] += (gpu.placements, gpu.simulated_millicores, users)
        return Fleet(allowed, {key_of(g): prices.get(g.product, 1.0) for g in gpus}, signature)


def cost_of(packing: Packing, fleet: Fleet) -> float:
    """Price of the GPUs that hold at least one slot."""
    return sum(fleet.price[key_of(room.gpu)] for room in packing.open_rooms())


def slot_of(model: ModelId, option: Option, device: Device, demand: Demand, ordinal: int) -> Slot:
    return Slot(
        model=model,
        device=device,
        compute_percent=option.percent,
        memory_mib=option.memory_mib,
        clients=option.clients,
        batch=option.batch,
        instances=option.instances,
        queue_delay_us=0,  # what waits is taken as soon as an instance is free: nobody waits for a batch to fill
        artifact=demand.artifact,
        ordinal=ordinal,
    )


def place(packing: Packing, fleet: Fleet, model: ModelId, option: Option, *, closed: bool = False) -> bool:
    """Add replicas until the model has as many as the option asks for; all or none.

    ``closed``: open no GPU that is empty now.
    """
    mark = packing.mark()
    while len(packing.slots[model]) < option.replicas:
        slot = best_slot(packing, fleet, model, option, closed=closed)
        if slot is None:
            packing.back_to(mark)
            return False
        packing.add(slot)
    return True


def best_slot(packing: Packing, fleet: Fleet, model: ModelId, option: Option, *, closed: bool = False) -> Slot | None:
    """The best fitting device for one more replica: an open GPU before an empty one, then the tightest."""
    best: tuple[tuple[object, ...], Slot] | None = None
    tried: set[tuple[object, ...]] = set()
    own = {key_of(s.device) for s in packing.slots[model]}
    for gpu in fleet.allowed[model]:
        key = key_of(gpu)
        room = packing.rooms[key]
        if gpu.product != option.product or (closed and not room.slots):
            continue
        if not room.slots:
            if fleet.signature[key] in tried:
                continue
            tried.add(fleet.signature[key])
        slot = _slot_on(packing, room, model, option)
        if slot is None:
            continue
        rank = (0.0 if room.slots else fleet.price[key], key in own, *_tightness(packing, room, slot, option), key)
        if best is None or rank < best[0]:
            best = rank, slot
    return best[1] if best else None


def _slot_on(packing: Packing, room: Room, model: ModelId, option: Option) -> Slot | None:
    demand = packing.demands[model]
    if not option.mig:
        device = Device(room.gpu.node, room.gpu.uuid)
        slot = slot_of(model, option, device, demand, _ordinal(packing, model, device))
        return slot if packing.fits(slot) else None
    starts = [p for p in room.gpu.placements if p.profile == option.mig]
    for placement in sorted(starts, key=lambda p: (-_left(room, p), p.start)):
        device = Device(room.gpu.node, room.gpu.uuid, placement.profile, placement.start)
        slot = slot_of(model, option, device, demand, 0)
        if packing.fits(slot):
            return slot
    return None


def _ordinal(packing: Packing, model: ModelId, device: Device) -> int:
    used = {slot.ordinal for slot in packing.slots[model] if slot.device == device}
    return next(n for n in range(len(used) + 1) if n not in used)


def _left(room: Room, placement: Placement) -> int:
    """Memory slices of all placements that stay possible: a start that spoils few others is the better one."""
    taken = [*room.taken, placement]
    return sum(p.size for p in room.gpu.placements if fits_beside(p, taken, room.gpu.compute_slices))


def _tightness(packing: Packing, room: Room, slot: Slot, option: Option) -> tuple[float, ...]:
    if slot.device.profile is None:
        return (float(room.percent - slot.compute_percent), float(room.memory_mib - slot.memory_mib))
    placement = packing.placement(slot.device)
    assert placement is not None
    return (float(_left(room, placement)), 0.0)


def volume(option: Option, gpu: Gpu) -> float:
    """The part of a GPU that all replicas of an option take, by the scarcest of its resources."""
    if option.mig:
        placement = next((p for p in gpu.placements if p.profile == option.mig), None)
        size = max(placement.size / 8, placement.compute_slices / gpu.compute_slices) if placement else 1.0
    else:
        size = max(option.percent / 100, option.memory_mib / gpu.memory_mib, option.clients / max(1, gpu.clients))
    return option.replicas * size


def insert(packing: Packing, fleet: Fleet, model: ModelId, options: Sequence[Option], *, closed: bool = False) -> bool:
    """Place a model by the option that costs least, then takes least; False (and nothing changed) if none fits."""
    mark = packing.mark()
    best: tuple[tuple[float, ...], int] | None = None
    before = cost_of(packing, fleet)
    for index, option in enumerate(options):
        gpu = next((g for g in fleet.allowed[model] if g.product == option.product), None)
        if gpu is None or not place(packing, fleet, model, option, closed=closed):
            continue
        rank = (cost_of(packing, fleet) - before, volume(option, gpu) * fleet.price[key_of(gpu)], option.p99_ms)
        packing.back_to(mark)
        if best is None or rank < best[0]:
            best = rank, index
    return best is not None and place(packing, fleet, model, options[best[1]], closed=closed)


def insert_all(packing: Packing, fleet: Fleet, models: Iterable[ModelId], ways: Ways) -> list[ModelId]:
    """Insert models in the given order; those that do not fit are returned."""
    return [model for model in models if not insert(packing, fleet, model, ways[model])]


def by_size(models: Iterable[ModelId], fleet: Fleet, ways: Ways) -> list[ModelId]:
    """Largest first: the order in which best fit wastes least."""

    def size(model: ModelId) -> float:
        gpus = {gpu.product: gpu for gpu in reversed(fleet.allowed[model])}
        return min((volume(o, gpus[o.product]) for o in ways[model] if o.product in gpus), default=0.0)

    return sorted(models, key=lambda m: (-size(m), m))
