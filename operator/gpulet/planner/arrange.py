"""What policy asks of a plan beyond its cost: two fault domains for a model, and nodes that stay empty.

A fault domain is a device: all MPS clients of one device end together. Replicas change places with equal shares of
other models, or move into room that is there; for two domains another GPU may be opened, for two or empty nodes never.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice

from gpulet.model.demand import ModelId
from gpulet.model.device import Device, Gpu
from gpulet.model.plan import Problem, Slot
from gpulet.planner.assign import Fleet, cost_of, next_ordinal
from gpulet.planner.eligibility import Rules
from gpulet.planner.improve import packing_of
from gpulet.planner.packing import GpuKey, Packing, key_of, slot_order
from gpulet.planner.search import Found

Wanted = Callable[[Device], bool]
_TRIES = 300
"""Shares of others that a replica is offered to change with."""
_NODE_WORTH = 1.0
"""GPUs that the moves which empty a node may cost at most (``PlannerPolicy.move_price`` each)."""


def arranged(problem: Problem, rules: Rules, found: Found) -> Found:
    """``problem``: with the demands that are placed. Without such policies the plan stays as it is."""
    policy = problem.policy
    if not (policy.fault_domains or policy.empty_nodes) or not found.slots:
        return found
    fleet = Fleet.of(problem, rules)
    packing = packing_of(problem, rules, found.slots)
    notes: tuple[str, ...] = ()
    if policy.empty_nodes:
        _empty_nodes(packing, fleet, problem)
    if policy.fault_domains:
        notes = _spread(packing, fleet)
    after = _as_before(packing, problem, rules, fleet)
    cost = found.cost if found.cost == float("inf") else cost_of(after, fleet)
    return replace(found, slots=after.all_slots(), cost=cost, notes=(*found.notes, *notes))


def _as_before(packing: Packing, problem: Problem, rules: Rules, fleet: Fleet) -> Packing:
    """What exists, if it is the same plan on other devices, costs no more and is as well spread."""
    current = tuple(sorted(set(problem.current), key=slot_order))
    if Counter(map(_shape, current)) != Counter(map(_shape, packing.all_slots())):
        return packing
    there = Packing(problem, rules)
    for slot in current:
        if not there.fits(slot):
            return packing
        there.add(slot)
    worse = (
        cost_of(there, fleet) > cost_of(packing, fleet) + 1e-9
        or len(_crowded(there)) > len(_crowded(packing))
        or (problem.policy.empty_nodes and len(_nodes(there)) > len(_nodes(packing)))
    )
    return packing if worse else there


def _shape(slot: Slot) -> Slot:
    return replace(slot, device=Device("", "", slot.device.profile), ordinal=0)


def _nodes(packing: Packing) -> set[str]:
    return {node for node, _ in packing.open}


def _crowded(packing: Packing) -> list[ModelId]:
    """Models with two or more replicas, all on one device."""
    several = [(m, slots) for m, slots in packing.slots.items() if len(slots) > 1]
    return sorted(m for m, slots in several if len({s.device for s in slots}) == 1)


def _spread(packing: Packing, fleet: Fleet) -> tuple[str, ...]:
    """Two devices for every model with two replicas, then two nodes; what is said where that is impossible."""
    for model in _crowded(packing):
        own = packing.slots[model][0].device
        if not _exchanged(packing, fleet, model, _other_device(own)):
            # What is opened anyway is better opened on another node.
            _moved(packing, fleet, model, (_other_node(own), _other_device(own)), opening=True)
    for model in sorted(m for m, slots in packing.slots.items() if len(slots) > 1):
        if len({s.device.node for s in packing.slots[model]}) > 1:
            continue
        elsewhere = _other_node(packing.slots[model][0].device)
        if not _exchanged(packing, fleet, model, elsewhere):
            _moved(packing, fleet, model, (elsewhere,), opening=False)
    return tuple(f"{m} has all replicas in one fault domain: no other device has room" for m in _crowded(packing))


def _other_device(own: Device) -> Wanted:
    return lambda device: device != own


def _other_node(own: Device) -> Wanted:
    return lambda device: device.node != own.node


def _exchanged(packing: Packing, fleet: Fleet, model: ModelId, wanted: Wanted) -> bool:
    """Change places with an equal share of another model that is not crowded by it."""
    for mine in sorted(packing.slots[model], key=slot_order, reverse=True):
        for other in islice(_equal(packing, mine, wanted), _TRIES):
            if _change(packing, fleet, mine, other):
                return True
    return False


def _equal(packing: Packing, mine: Slot, wanted: Wanted) -> Iterator[Slot]:
    product = packing.rooms[key_of(mine.device)].gpu.product
    for other_model in sorted(packing.slots):
        for other in sorted(packing.slots[other_model], key=slot_order):
            same = (other.device.profile, other.compute_percent) == (mine.device.profile, mine.compute_percent)
            elsewhere = packing.rooms[key_of(other.device)].gpu.product == product and wanted(other.device)
            if other_model != mine.model and same and elsewhere and not other.turns:
                yield other


def _change(packing: Packing, fleet: Fleet, mine: Slot, other: Slot) -> bool:
    """Whether the two changed places; nothing changed else."""
    mark = packing.mark()
    rest = [s for s in packing.slots[other.model] if s != other]
    if rest and {s.device for s in rest} == {mine.device}:
        return False  # the other would have one domain then
    packing.remove(mine)
    packing.remove(other)
    if _put(packing, fleet, mine, other.device) and _put(packing, fleet, other, mine.device):
        return True
    packing.back_to(mark)
    return False


def _put(packing: Packing, fleet: Fleet, slot: Slot, device: Device) -> bool:
    if not fleet.allows(slot.model, packing.rooms[key_of(device)].gpu):
        return False
    ordinal = 0 if device.profile else next_ordinal(packing, slot.model, device)
    there = replace(slot, device=device, ordinal=ordinal)
    if not packing.fits(there):
        return False
    packing.add(there)
    return True


def _moved(packing: Packing, fleet: Fleet, model: ModelId, wanted: tuple[Wanted, ...], *, opening: bool) -> bool:
    """Move one replica into free room, of GPUs in use first; ``opening``: an empty GPU if need be. ``wanted``: the
    best places first."""
    mine = max(packing.slots[model], key=slot_order)
    for in_use in (True, False) if opening else (True,):
        homes = [device for gpu, device in _homes(packing, fleet, mine) if (key_of(gpu) in packing.open) == in_use]
        for suits in wanted:
            for device in filter(suits, homes):
                mark = packing.mark()
                packing.remove(mine)
                if _put(packing, fleet, mine, device):
                    return True
                packing.back_to(mark)
    return False


def _homes(packing: Packing, fleet: Fleet, mine: Slot) -> Iterator[tuple[Gpu, Device]]:
    """Devices of the kind that the replica is on now."""
    product, profile = packing.rooms[key_of(mine.device)].gpu.product, mine.device.profile
    for gpu in fleet.allowed[mine.model]:
        if gpu.product != product:
            continue
        starts = [p.start for p in gpu.placements if p.profile == profile] if profile else [None]
        for start in starts:
            yield gpu, Device(gpu.node, gpu.uuid, profile, start)


def _empty_nodes(packing: Packing, fleet: Fleet, problem: Problem) -> None:
    """Empty the nodes with the fewest GPUs in use into free GPUs of nodes with more."""
    used = Counter(node for node, _ in packing.open)
    for node in sorted(used, key=lambda n: (used[n], n)):
        mark = packing.mark()
        moved = _left(packing, fleet, node, _nodes(packing) - {node})
        now = {s for s in problem.current if s.device.node == node}
        price = problem.policy.move_price * len(now)
        if not moved or price > _NODE_WORTH:
            packing.back_to(mark)


def _left(packing: Packing, fleet: Fleet, node: str, others: set[str]) -> bool:
    """Whether all that is on a node found place on free GPUs of the others, GPU by GPU."""
    by_gpu: dict[GpuKey, list[Slot]] = defaultdict(list)
    for slots in packing.slots.values():
        for slot in slots:
            if slot.device.node == node:
                by_gpu[key_of(slot.device)].append(slot)
    free = [k for k in sorted(packing.rooms) if k[0] in others and k not in packing.open]
    for key, slots in sorted(by_gpu.items()):
        sort = fleet.signature[key][1]
        home = next((k for k in free if fleet.signature[k][1] == sort and _all_moved(packing, fleet, slots, k)), None)
        if home is None:
            return False
        free.remove(home)
    return bool(by_gpu)


def _all_moved(packing: Packing, fleet: Fleet, slots: list[Slot], key: GpuKey) -> bool:
    mark = packing.mark()
    for slot in sorted(slots, key=slot_order):
        packing.remove(slot)
    for slot in sorted(slots, key=slot_order):
        there = replace(slot, device=replace(slot.device, node=key[0], gpu=key[1]))
        if not packing.fits(there):
            packing.back_to(mark)
            return False
        packing.add(there)
    return True
