"""From a packing to a cheaper or more familiar one, for problems too large to be solved exactly."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from gpulet.model.demand import ModelId
from gpulet.model.plan import Problem, Slot
from gpulet.planner.assign import Fleet, Ways, by_size, cost_of, insert, place
from gpulet.planner.eligibility import Rules
from gpulet.planner.layouts import Layout, arrangement
from gpulet.planner.packing import GpuKey, Packing, key_of, slot_order
from gpulet.planner.program import Choice
from gpulet.planner.throughput import Option

_ATTEMPTS = 60
_EPSILON = 1e-9


def packing_of(problem: Problem, rules: Rules, slots: Iterable[Slot]) -> Packing:
    """A packing with these slots, added in their own order: equal sets give equal packings."""
    packing = Packing(problem, rules)
    for slot in sorted(slots, key=slot_order):
        packing.add(slot)
    return packing


def fresh(problem: Problem, rules: Rules, fleet: Fleet, ways: Ways, choice: Choice) -> Packing | None:
    """The aggregated program's choice on concrete GPUs, whatever exists now; None if not all models fit."""
    packing = Packing(problem, rules)
    cuts: dict[GpuKey, Layout] = {}
    for key, wanted in choice.cuts.items():
        room = packing.rooms[key]
        layout = arrangement(dict(wanted), room.gpu.placements, room.gpu.compute_slices, tuple(room.taken))
        if layout is not None:
            cuts[key] = layout
    order = by_size(ways, fleet, {m: [choice.options[m]] if m in choice.options else ways[m] for m in ways})
    left = [m for m in order if not (m in choice.options and place(packing, fleet, m, choice.options[m], cuts=cuts))]
    if not all(insert(packing, fleet, model, ways[model]) for model in left):
        return None
    for model in order:
        _reinsert(packing, fleet, ways, model)
    return packing


def _reinsert(packing: Packing, fleet: Fleet, ways: Ways, model: ModelId) -> None:
    """Give a model the option that takes least in what is open: the program looks at GPUs alone."""
    mark, before = packing.mark(), cost_of(packing, fleet)
    packing.remove_all(model)
    if not insert(packing, fleet, model, ways[model]) or cost_of(packing, fleet) > before + _EPSILON:
        packing.back_to(mark)


def consolidate(
    packing: Packing, problem: Problem, rules: Rules, fleet: Fleet, ways: Ways, *, enough: float
) -> Packing:
    """Empty GPUs one by one into the others until none can be, or the cost is down to ``enough``.

    The result depends on the set of slots alone, so that a consolidated packing stays as it is.
    """
    while cost_of(packing, fleet) > enough + _EPSILON:
        packing = packing_of(problem, rules, packing.all_slots())
        emptiest = sorted(packing.open, key=lambda key: (-packing.rooms[key].idle, key))
        if not any(_empty(packing, fleet, ways, key) for key in emptiest[:_ATTEMPTS]):
            break
    return packing


def _empty(packing: Packing, fleet: Fleet, ways: Ways, key: GpuKey) -> bool:
    """Move all slots of a GPU into GPUs that are open; False, and nothing changed, if that is impossible."""
    mark, before = packing.mark(), cost_of(packing, fleet)
    leaving = sorted((s for found in packing.slots.values() for s in found if key_of(s.device) == key), key=slot_order)
    counts = {model: len(packing.slots[model]) for model in {slot.model for slot in leaving}}
    for slot in leaving:
        packing.remove(slot)
    for model in by_size(counts, fleet, ways):
        same = [o for o in ways[model] if _is(o, leaving, model) and o.replicas == counts[model]]
        if any(place(packing, fleet, model, option, closed=True) for option in same):
            continue
        packing.remove_all(model)
        if not insert(packing, fleet, model, ways[model], closed=True):
            break
    else:
        if cost_of(packing, fleet) < before - _EPSILON:
            return True
    packing.back_to(mark)
    return False


def _is(option: Option, leaving: list[Slot], model: ModelId) -> bool:
    slot = next(s for s in leaving if s.model == model)
    wanted = (slot.device.profile or "", slot.compute_percent, slot.batch, slot.instances, slot.memory_mib)
    return wanted == tuple(getattr(option, n) for n in ("mig", "percent", "batch", "instances", "memory_mib"))


def align(slots: tuple[Slot, ...], problem: Problem, fleet: Fleet) -> tuple[Slot, ...]:
    """Swap interchangeable GPUs so that as many slots as possible are where they are now."""
    if not problem.current:
        return slots
    current: dict[GpuKey, set[Slot]] = defaultdict(set)
    planned: dict[GpuKey, list[Slot]] = defaultdict(list)
    for slot in problem.current:
        current[key_of(slot.device)].add(slot)
    for slot in slots:
        planned[key_of(slot.device)].append(slot)
    groups: dict[tuple[str, int], list[GpuKey]] = defaultdict(list)
    for key in sorted(fleet.signature):
        groups[fleet.signature[key]].append(key)
    now = {key: _bare(found) for key, found in current.items()}
    then = {key: _bare(found) for key, found in planned.items()}
    result: list[Slot] = []
    for keys in groups.values():
        pairs = [(-len(then[a] & now.get(b, frozenset())), a, b) for a in keys if a in then for b in keys]
        home: dict[GpuKey, GpuKey] = {}
        for _, a, b in sorted(pairs, key=lambda p: (p[0], p[1] != p[2], p[1], p[2])):
            if a not in home and b not in home.values():
                home[a] = b
                result += _moved(planned[a], b)
    return tuple(sorted(result, key=slot_order))


def _moved(slots: list[Slot], key: GpuKey) -> list[Slot]:
    return [replace(slot, device=replace(slot.device, node=key[0], gpu=key[1])) for slot in slots]


def _bare(slots: Iterable[Slot]) -> frozenset[Slot]:
    """The slots of one GPU without its name."""
    return frozenset(_moved(list(slots), ("", "")))
