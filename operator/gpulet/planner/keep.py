"""Which of the existing replicas a plan can go on with, exactly as they are."""

from __future__ import annotations

from collections import defaultdict

from gpulet.model.demand import Demand, ModelId
from gpulet.model.plan import PlannerPolicy, Problem, Slot
from gpulet.planner.assign import Fleet, Ways, cost_of, insert, place
from gpulet.planner.packing import GpuKey, Packing, key_of, slot_order
from gpulet.planner.throughput import Option, option_of, usable_points

_EPSILON = 1e-9


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


def standing(packing: Packing, problem: Problem, fleet: Fleet) -> dict[ModelId, dict[Option, list[Slot]]]:
    """Existing slots that may stay, by model and by what they are."""
    result: dict[ModelId, dict[Option, list[Slot]]] = {d.model: defaultdict(list) for d in problem.demands}
    for slot in sorted(set(problem.current), key=slot_order):
        room = packing.rooms.get(key_of(slot.device))
        if room is None or not fleet.allows(slot.model, room.gpu):
            continue
        option = option_of_slot(slot, packing.demands[slot.model], room.gpu.product, problem.policy)
        if option is not None:
            result[slot.model][option].append(slot)
    return result


def keep(packing: Packing, problem: Problem, fleet: Fleet) -> dict[ModelId, Option]:
    """Add every existing slot that may stay; per model slots of one kind, no more than it needs.

    Returned, per model that keeps any: the option that its slots are.
    """
    crowd: dict[GpuKey, int] = defaultdict(int)
    for slot in set(problem.current):
        crowd[key_of(slot.device)] += 1
    kept: dict[ModelId, Option] = {}
    groups = standing(packing, problem, fleet)
    for demand in sorted(problem.demands, key=lambda d: (-d.priority, d.model)):
        if not groups[demand.model]:
            continue
        option, slots = max(groups[demand.model].items(), key=lambda item: (len(item[1]), item[0]))
        # Those that stand alone are given up first: their GPUs may become empty.
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


def continued(packing: Packing, fleet: Fleet, ways: Ways, kept: dict[ModelId, Option], model: ModelId) -> bool:
    """Make a model whole: what it keeps and more of it, or another option if that costs less; False if none fits."""
    option = kept.get(model)
    if option is None:
        return insert(packing, fleet, model, ways[model])
    if len(packing.slots[model]) >= option.replicas:
        return True
    mark, before = packing.mark(), cost_of(packing, fleet)
    grown = place(packing, fleet, model, option)
    if grown and cost_of(packing, fleet) <= before + _EPSILON:
        return True
    price = cost_of(packing, fleet)
    packing.back_to(mark)
    packing.remove_all(model)
    if insert(packing, fleet, model, ways[model]) and (not grown or cost_of(packing, fleet) < price - _EPSILON):
        del kept[model]
        return True
    packing.back_to(mark)
    if grown:
        return place(packing, fleet, model, option)
    packing.remove_all(model)
    del kept[model]
    return False
