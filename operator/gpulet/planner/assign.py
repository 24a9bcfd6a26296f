"""Options become slots on concrete devices: best fit, model by model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpulet.model.demand import Demand, ModelId
from gpulet.model.device import Device, Gpu
from gpulet.model.plan import Problem, Slot
from gpulet.planner.eligibility import Rules
from gpulet.planner.layouts import Layout
from gpulet.planner.packing import GpuKey, Packing, Room, key_of
from gpulet.planner.throughput import Option

_EPSILON = 1e-9
Ways = Mapping[ModelId, Sequence[Option]]
"""The options of every model that has any."""


Cuts = Mapping[GpuKey, Layout]
"""GPUs that are to be cut, and how; all others are to be used whole."""


@dataclass(frozen=True)
class Fleet:
    """The GPUs as a decision sees them: who may use which, and what each costs."""

    allowed: Mapping[ModelId, tuple[Gpu, ...]]
    allowed_keys: Mapping[ModelId, frozenset[GpuKey]]
    price: Mapping[GpuKey, float]
    signature: Mapping[GpuKey, tuple[str, int]]
    """Node and sort: GPUs of equal sort are interchangeable while they are empty, but for their hosts."""

    def allows(self, model: ModelId, gpu: Gpu) -> bool:
        """Whether the model may use the GPU at all, whatever else is there."""
        return key_of(gpu) in self.allowed_keys.get(model, frozenset())

    @staticmethod
    def of(problem: Problem, rules: Rules) -> Fleet:
        gpus = sorted(problem.gpus, key=key_of)
        groups = _by_places(problem.demands)
        places = [tuple(g for g in gpus if _may_use(example, g, rules)) for example, _ in groups]
        keys = [frozenset(key_of(g) for g in found) for found in places]
        home = {m: i for i, (_, models) in enumerate(groups) for m in models}
        models = sorted(home)
        prices = dict(problem.policy.prices)
        occupied = {key_of(u.device) for u in problem.usages}
        refused = {key_of(d) for devices in rules.refused.values() for d in devices}
        sorts: dict[tuple[object, ...], int] = {}
        signature: dict[GpuKey, tuple[str, int]] = {}
        tables: dict[object, int] = {}
        number = {id(g.placements): tables.setdefault(g.placements, len(tables)) for g in _distinct(gpus)}
        for gpu in gpus:
            key = key_of(gpu)
            users = tuple(i for i, found in enumerate(keys) if key in found)
            own = key if key in occupied or key in refused else ("", "")
            size = (gpu.product, gpu.memory_mib, gpu.clients, gpu.compute_slices, gpu.simulated_millicores)
            sort = (own, size, gpu.whole, number[id(gpu.placements)], users)
            signature[key] = (gpu.node, sorts.setdefault(sort, len(sorts)))
        return Fleet(
            {m: places[home[m]] for m in models},
            {m: keys[home[m]] for m in models},
            {key_of(g): prices.get(g.product, 1.0) for g in gpus},
            signature,
        )


def _distinct(gpus: Iterable[Gpu]) -> Iterable[Gpu]:
    """One GPU per table of placements: the tables are long to compare, and large fleets share few."""
    return {id(g.placements): g for g in gpus}.values()


def _by_places(demands: Iterable[Demand]) -> list[tuple[Demand, list[ModelId]]]:
    """Models that may run at the same places, by the example of one."""
    groups: dict[tuple[object, ...], tuple[Demand, list[ModelId]]] = {}
    for demand in sorted(demands, key=lambda d: d.model):
        _, models = groups.setdefault((demand.tolerations, demand.nodes), (demand, []))
        models.append(demand.model)
    return list(groups.values())


def _may_use(demand: Demand, gpu: Gpu, rules: Rules) -> bool:
    return rules.why_not(demand, gpu) is None


def cost_of(packing: Packing, fleet: Fleet) -> float:
    """Price of the GPUs that hold at least one slot."""
    return math.fsum(fleet.price[key] for key in packing.open)  # fsum: the same in any order


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


def place(
    packing: Packing, fleet: Fleet, model: ModelId, option: Option, *, closed: bool = False, cuts: Cuts | None = None
) -> bool:
    """Add replicas until the model has as many as the option asks for; all or none.

    ``closed``: open no GPU that is empty now.
    """
    mark = packing.mark()
    if add_replicas(packing, fleet, model, option, closed=closed, cuts=cuts) < option.replicas:
        packing.back_to(mark)
        return False
    return True


def add_replicas(
    packing: Packing, fleet: Fleet, model: ModelId, option: Option, *, closed: bool = False, cuts: Cuts | None = None
) -> int:
    """Add replicas up to the option's number as far as there is room; how many the model has then."""
    while len(packing.slots[model]) < option.replicas:
        slot = best_slot(packing, fleet, model, option, closed=closed, cuts=cuts)
        if slot is None:
            break
        packing.add(slot)
    return len(packing.slots[model])


def best_slot(
    packing: Packing, fleet: Fleet, model: ModelId, option: Option, *, closed: bool = False, cuts: Cuts | None = None
) -> Slot | None:
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
            sort = (fleet.signature[key], cuts.get(key) if cuts is not None else None)
            if sort in tried:
                continue
            tried.add(sort)
        found = _slot_on(packing, room, model, option, cuts)
        if found is None:
            continue
        rank = (0.0 if room.slots else fleet.price[key], key in own, *found[0], key)
        if best is None or rank < best[0]:
            best = rank, found[1]
    return best[1] if best else None


def _slot_on(
    packing: Packing, room: Room, model: ModelId, option: Option, cuts: Cuts | None
) -> tuple[tuple[float, float], Slot] | None:
    """The best slot on one GPU, and what it leaves there."""
    demand, key = packing.demands[model], key_of(room.gpu)
    cut = cuts.get(key) if cuts is not None else None
    if not option.mig:
        if room.taken or option.percent > room.percent:
            return None
        device = Device(room.gpu.node, room.gpu.uuid)
        slot = slot_of(model, option, device, demand, next_ordinal(packing, model, device))
        if cut is not None or not packing.fits(slot):
            return None
        return (float(room.percent - slot.compute_percent), float(room.memory_mib - slot.memory_mib)), slot
    if room.used_whole or (cuts is not None and cut is None):
        return None
    for left, placement in room.starts_of(option.mig):
        device = Device(room.gpu.node, room.gpu.uuid, placement.profile, placement.start)
        slot = slot_of(model, option, device, demand, 0)
        if (cut is None or placement in cut) and packing.fits(slot):
            return (float(left), 0.0), slot
    return None


def next_ordinal(packing: Packing, model: ModelId, device: Device) -> int:
    """The least number that tells one more replica on the device apart."""
    used = {slot.ordinal for slot in packing.slots[model] if slot.device == device}
    return next(n for n in range(len(used) + 1) if n not in used)


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
    best: tuple[float, Option] | None = None
    before = cost_of(packing, fleet)
    for option in _smallest_first(fleet, model, options):
        if not place(packing, fleet, model, option, closed=closed):
            continue
        added = cost_of(packing, fleet) - before
        if added <= _EPSILON:
            return True  # the smallest of those that cost nothing
        packing.back_to(mark)
        if best is None or added < best[0] - _EPSILON:
            best = added, option
    return best is not None and place(packing, fleet, model, best[1], closed=closed)


def _smallest_first(fleet: Fleet, model: ModelId, options: Sequence[Option]) -> list[Option]:
    """Options of GPUs that the model may use, by what they take of them, then by latency."""
    gpus = {gpu.product: gpu for gpu in reversed(fleet.allowed[model])}
    usable = [option for option in options if option.product in gpus]

    def size(option: Option) -> tuple[float, float]:
        gpu = gpus[option.product]
        return (volume(option, gpu) * fleet.price[key_of(gpu)], option.p99_ms)

    return sorted(usable, key=size)


def by_size(models: Iterable[ModelId], fleet: Fleet, ways: Ways) -> list[ModelId]:
    """Largest first: the order in which best fit wastes least."""

    def size(model: ModelId) -> float:
        gpus = {gpu.product: gpu for gpu in reversed(fleet.allowed[model])}
        return min((volume(o, gpus[o.product]) for o in ways[model] if o.product in gpus), default=0.0)

    return sorted(models, key=lambda m: (-size(m), m))
