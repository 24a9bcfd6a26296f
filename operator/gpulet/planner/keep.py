"""Which of the existing replicas a plan can go on with, exactly as they are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from gpulet.model.demand import Demand, ModelId
from gpulet.model.plan import PlannerPolicy, Problem, Slot
from gpulet.planner.assign import Fleet
from gpulet.planner.packing import Packing, key_of, slot_order
from gpulet.planner.throughput import Option, option_of, usable_points

Kept = Mapping[ModelId, Option]
"""Per model that keeps slots: the option that they are."""


def option_of_slot(slot: Slot, demand: Demand, product: str, policy: PlannerPolicy) -> Option | None:
    """What an existing slot does for the present demand; None if it no longer meets its objective.

    A share between two measured ones counts as the lower one.
    """
    if slot.artifact != demand.artifact or slot.clients != slot.instances or slot.queue_delay_us != 0:
        return None
    points = [
        p
        for p in usable_points(demand)
        if (p.product, p.mig, p.batch, p.instances) == (product, slot.device.profile, slot.batch, slot.instances)
        and p.compute_percent <= slot.compute_percent
    ]
    if not points:
        return None
    option = option_of(demand, max(points, key=lambda p: p.compute_percent), policy)
    if option is None or option.memory_mib > slot.memory_mib:
        return None
    fields = {name: getattr(option, name) for name in option.__dataclass_fields__}
    return Option(**fields | {"percent": slot.compute_percent, "memory_mib": slot.memory_mib})


def keep(packing: Packing, problem: Problem, fleet: Fleet) -> Kept:
    """Add every existing slot that may stay to the packing; per model slots of one kind, no more than it needs."""
    crowd: dict[tuple[str, str], int] = defaultdict(int)
    by_model: dict[ModelId, list[Slot]] = defaultdict(list)
    for slot in sorted(set(problem.current), key=slot_order):
        crowd[key_of(slot.device)] += 1
        by_model[slot.model].append(slot)
    kept: dict[ModelId, Option] = {}
    for demand in sorted(problem.demands, key=lambda d: (-d.priority, d.model)):
        groups: dict[Option, list[Slot]] = defaultdict(list)
        for slot in by_model[demand.model]:
            room = packing.rooms.get(key_of(slot.device))
            if room is None or room.gpu not in fleet.allowed[demand.model]:
                continue
            option = option_of_slot(slot, demand, room.gpu.product, problem.policy)
            if option is not None:
                groups[option].append(slot)
        if groups:
            option, slots = max(groups.items(), key=lambda item: (len(item[1]), item[0]))
            # Those that stand alone go first: their GPUs may become empty.
            slots.sort(key=lambda s: (-crowd[key_of(s.device)], *slot_order(s)))
            if _add(packing, slots, option.replicas):
                kept[demand.model] = option
    return kept


def _add(packing: Packing, slots: list[Slot], wanted: int) -> int:
    added = 0
    for slot in slots:
        if added < wanted and packing.fits(slot):
            packing.add(slot)
            added += 1
    return added
