"""Existing replicas under a weighted split: which can stay, and how few of them carry their model."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpulet.model.demand import Demand, ModelId
from gpulet.model.plan import Problem, Slot
from gpulet.planner.assign import Fleet
from gpulet.planner.packing import GpuKey, Packing, key_of, slot_order
from gpulet.planner.throughput import Option
from gpulet.planner.weighted.catalogue import Catalogue

COVERED = 1 - 1e-9
"""The part of a rate that counts as all of it."""


@dataclass(frozen=True)
class Held:
    """An existing replica that may stay, and what it does now."""

    slot: Slot
    option: Option


def standing(problem: Problem, packing: Packing, fleet: Fleet, catalogue: Catalogue) -> Mapping[ModelId, list[Held]]:
    """By model, in the order in which they are to be kept: those in good company first, then the largest."""
    crowd: dict[GpuKey, int] = defaultdict(int)
    for slot in set(problem.current):
        crowd[key_of(slot.device)] += 1
    found: dict[ModelId, list[Held]] = defaultdict(list)
    uniform = problem.policy.split == "even"
    for slot in set(problem.current):
        demand, room = packing.demands.get(slot.model), packing.rooms.get(key_of(slot.device))
        if demand is None or room is None or slot.turns or not fleet.allows(slot.model, room.gpu):
            continue
        option = catalogue.of_slot(slot, demand, room.gpu)
        if option is not None:
            found[slot.model].append(Held(slot, option))
    for model, held in found.items():
        held.sort(key=lambda h: (-crowd[key_of(h.slot.device)], -h.option.replica_per_s, slot_order(h.slot)))
        if uniform:
            most = max(Counter(h.option for h in held).items(), key=lambda item: (item[1], item[0]))[0]
            found[model] = [h for h in held if h.option == most]
    return found


def keep(packing: Packing, held: Mapping[ModelId, list[Held]], demands: Iterable[Demand]) -> dict[ModelId, float]:
    """Add what may stay, per model no more than it needs; the requests/s that are missing then, where any are."""
    missing: dict[ModelId, float] = {}
    for demand in sorted(demands, key=lambda d: (-d.priority, d.model)):
        added = []
        for one in held.get(demand.model, ()):
            if packing.fits(one.slot):
                packing.add(one.slot)
                added.append(one)
        for one in superfluous(added, demand.requests_per_s):
            packing.remove(one.slot)
            added.remove(one)
        carried = sum(one.option.replica_per_s for one in added)
        if carried < demand.requests_per_s * COVERED or not added:
            missing[demand.model] = demand.requests_per_s - carried
    return missing


def superfluous(held: list[Held], per_s: float) -> list[Held]:
    """Replicas that can go without the rate being missed, those listed last first; one always stays."""
    carried = sum(one.option.replica_per_s for one in held)
    gone: list[Held] = []
    for one in reversed(held):
        if len(held) - len(gone) > 1 and carried - one.option.replica_per_s >= per_s * COVERED:
            carried -= one.option.replica_per_s
            gone.append(one)
    return gone
