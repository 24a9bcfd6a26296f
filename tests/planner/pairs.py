"""Random pairs of plans of one world: what exists, and what is planned instead, often with everybody elsewhere."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace

from gpulet.model.demand import Demand, ModelId
from gpulet.model.device import Device, Gpu
from gpulet.model.plan import Placed, Plan, PlannerPolicy, Problem, Slot
from gpulet.planner.eligibility import Rules
from gpulet.planner.packing import Packing
from gpulet.planner.throughput import Option, options_of
from tests.planner.worlds import CUT, demand, gpu, node, point

POLICY = PlannerPolicy(interference_margin=0.0)
PERCENTS = (20, 30, 40, 50, 60, 80, 100)
MIGS = {"1g.10gb": 1 / 7, "2g.20gb": 2 / 7, "3g.40gb": 3 / 7, "4g.40gb": 4 / 7, "7g.80gb": 1.0}


def pair(seed: int, *, gpus: int, spare: int, mig: bool = False, most_models: int = 100) -> tuple[Problem, Plan]:
    """A problem with its ``current`` and another plan for it. ``spare``: GPUs that are empty before and after."""
    chance = random.Random(seed)
    units = tuple(gpu(i, clients=chance.choice([4, 48]), placements=CUT if mig else ()) for i in range(gpus + spare))
    hosts = (node(cpu=6000 * len(units), free_pods=12 * len(units)),)
    wishes: list[Demand] = []
    before: list[Slot] = []
    after: list[Slot] = []
    while len(wishes) < most_models:
        wish = _wish(chance, f"m{len(wishes)}", mig=mig)
        asked = Problem(units, hosts, (*wishes, wish), policy=POLICY)
        more = [_added(chance, asked, slots, wish, units[:gpus]) for slots in (before, after)]
        if more[0] is None or more[1] is None:
            break
        wishes.append(wish)
        before, after = more[0], more[1]
    problem = Problem(units, hosts, tuple(wishes), current=tuple(before), policy=POLICY)
    return problem, plan_of(after)


def _wish(chance: random.Random, name: str, *, mig: bool) -> Demand:
    work_ms = chance.choice([2.0, 4.0])
    memory_mib = chance.choice([2000, 9000, 30_000])
    points = [point(p, ms=work_ms * (100 / p) ** 0.8, memory_mib=memory_mib) for p in PERCENTS]
    if mig:
        points += [point(100, mig=k, ms=work_ms / size, memory_mib=8000) for k, size in MIGS.items()]
    rate = chance.choice([5.0, 20.0, 60.0, 150.0])
    namespace = chance.choice(["red", "red", "blue"])
    return demand(name, *points, rate=rate, ms=200.0, namespace=namespace, isolation="Any", host_cpu_millicores=500)


def _added(
    chance: random.Random, problem: Problem, slots: list[Slot], wish: Demand, units: tuple[Gpu, ...]
) -> list[Slot] | None:
    """The slots with those of one more model, anywhere at random; None if it does not fit."""
    packing = Packing(problem, Rules.of(problem))
    for slot in slots:
        packing.add(slot)
    ways = [o for o in options_of(wish, POLICY) if o.replicas <= 4]
    for option in chance.sample(ways, min(3, len(ways))):
        mark = packing.mark()
        if all(_one_more(chance, packing, wish, option, units) for _ in range(option.replicas)):
            return list(packing.all_slots())
        packing.back_to(mark)
    return None


def _one_more(chance: random.Random, packing: Packing, wish: Demand, option: Option, units: tuple[Gpu, ...]) -> bool:
    for one in chance.sample(units, len(units)):
        spots = [p for p in one.placements if p.profile == option.mig] if option.mig else [None]
        for spot in spots:
            where = Device(one.node, one.uuid, *((spot.profile, spot.start) if spot else (None, None)))
            slot = Slot(wish.model, where, option.percent, option.memory_mib, option.clients, option.batch, 1)
            slot = replace(slot, ordinal=sum(s.device == where for s in packing.slots[wish.model]))
            if packing.fits(slot):
                packing.add(slot)
                return True
    return False


def plan_of(slots: list[Slot]) -> Plan:
    by_model: dict[ModelId, list[Slot]] = defaultdict(list)
    for slot in slots:
        by_model[slot.model].append(slot)
    placed = tuple(Placed(m, tuple(own), 1.0, 1.0, "") for m, own in sorted(by_model.items()))
    return Plan(placed, (), len({s.device.gpu for s in slots}), 0, "proven")
