"""From a Problem to a Plan."""

from __future__ import annotations

from gpulet.model.plan import Placed, Plan, Problem, Unplaced
from gpulet.planner.assign import Fleet, by_size, insert, place
from gpulet.planner.eligibility import Rules
from gpulet.planner.keep import keep
from gpulet.planner.packing import Packing
from gpulet.planner.throughput import options_of, predicted_ms


def plan(problem: Problem) -> Plan:
    rules = Rules.of(problem)
    fleet = Fleet.of(problem, rules)
    ways = {d.model: options_of(d, problem.policy) for d in problem.demands}
    packing = Packing(problem, rules)
    kept = dict(keep(packing, problem, fleet))
    unplaced = []
    for model in by_size(ways, fleet, ways):
        if model in kept and place(packing, fleet, model, kept[model]):
            continue
        for slot in tuple(packing.slots[model]):
            packing.remove(slot)
        kept.pop(model, None)
        if not insert(packing, fleet, model, ways[model]):
            unplaced.append(Unplaced(model, "NoDevice", "no room"))
    placed = []
    for demand in sorted(problem.demands, key=lambda d: d.model):
        slots = tuple(packing.slots[demand.model])
        if slots:
            option = kept.get(demand.model) or next(
                o
                for o in ways[demand.model]
                if (o.batch, o.percent, o.instances) == (slots[0].batch, slots[0].compute_percent, slots[0].instances)
            )
            n = len(slots)
            placed.append(
                Placed(
                    demand.model,
                    slots,
                    predicted_ms(option, demand, problem.policy.latency_rule, replicas=n),
                    n * option.replica_per_s,
                    "",
                )
            )
    gpus = sum(1 for _ in packing.open_rooms())
    return Plan(tuple(placed), tuple(unplaced), gpus, min(1, gpus), "volume")
