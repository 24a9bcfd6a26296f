"""Why a model does not fit, and the nearest change that would make it fit; and why a fitting one got its share."""

from __future__ import annotations

import math
from dataclasses import replace

from gpulet.model.demand import Demand
from gpulet.model.device import Gpu
from gpulet.model.plan import Problem, Slot, Unplaced
from gpulet.model.profile import ProfilePoint
from gpulet.planner.assign import Fleet, insert
from gpulet.planner.eligibility import Rules
from gpulet.planner.packing import Packing
from gpulet.planner.sanity import nothing_left
from gpulet.planner.throughput import Option, options_of, surface, unlimited, unloaded_ms, usable_points

_LIMITS = (
    ("memory", "NoMemory", "GPU memory"),
    ("clients", "MaxClients", "MPS clients of a device"),
    ("isolation", "Isolation", "sharing.isolation"),
    ("host", "NoHostResources", "host CPU, memory or pods of the nodes"),
)


def hopeless(demand: Demand, problem: Problem, rules: Rules, fleet: Fleet) -> Unplaced | None:
    """Why the model could not even run alone on any GPU of this cluster; None if a share of it could."""
    model = demand.model
    if (refusal := rules.refused_everywhere.get(model)) is not None:
        return Unplaced(model, "Refused", f"refused for the time being: {refusal.reason}")
    if not demand.profile.points:
        return Unplaced(
            model, "NoProfile", "its profile has no points: give some in spec.profileRef or let it be measured"
        )
    if (wrong := nothing_left(demand.profile.points)) is not None:
        return Unplaced(model, "NoProfile", wrong)
    if (missing := _no_device(demand, problem, rules, fleet)) is not None:
        return missing
    if (missing := _no_points(demand, fleet)) is not None:
        return missing
    return _infeasible(demand, problem, rules, fleet)


def _no_device(demand: Demand, problem: Problem, rules: Rules, fleet: Fleet) -> Unplaced | None:
    wanted = [g for g in problem.gpus if demand.products is None or g.product in demand.products]
    if not wanted:
        there = ", ".join(sorted({g.product for g in problem.gpus})) or "no GPU at all"
        asked = ", ".join(demand.products or ("any",))
        message = f"spec.products asks for {asked}; the cluster has {there}: add such a GPU or widen spec.products"
        return Unplaced(demand.model, "NoDevice", message)
    if not any(fleet.allows(demand.model, g) for g in wanted):
        reasons = sorted({why for g in wanted if (why := rules.why_not(demand, g)) is not None})
        return Unplaced(demand.model, "NoDevice", f"no GPU may take it: {'; '.join(reasons[:3])}")
    return None


def _no_points(demand: Demand, fleet: Fleet) -> Unplaced | None:
    gpus = fleet.allowed[demand.model]
    products = sorted({g.product for g in gpus})
    points = [p for p in surface(demand.profile.points) if p.product in products]
    if not points:
        measured = ", ".join(sorted({p.product for p in demand.profile.points}))
        message = (
            f"its profile was measured on {measured}, the GPUs it may use are {', '.join(products)}: measure it there"
        )
        return Unplaced(demand.model, "NoProfile", message)
    usable = [p for p in usable_points(demand) if any(_offers(g, p) for g in gpus)]
    if usable:
        return None
    if demand.fixed_batch is not None and not any(p.batch == demand.fixed_batch for p in points):
        message = f"its tuned artifact runs at batch {demand.fixed_batch} alone, which was not measured on its GPUs"
        return Unplaced(demand.model, "NoProfile", message)
    kinds = ", ".join(sorted({f"MIG {p.mig}" if p.mig else f"{p.compute_percent} % of a GPU" for p in points}))
    message = (
        f"sharing.mode {demand.mode} has no measured share that its GPUs offer now (measured: {kinds}): "
        "measure one, or set sharing.mode to Auto"
    )
    return Unplaced(demand.model, "NoDevice", message)


def _offers(gpu: Gpu, point: ProfilePoint) -> bool:
    if gpu.product != point.product:
        return False
    return gpu.whole if point.mig is None else any(p.profile == point.mig for p in gpu.placements)


def _infeasible(demand: Demand, problem: Problem, rules: Rules, fleet: Fleet) -> Unplaced | None:
    gpus = fleet.allowed[demand.model]
    options = [o for o in options_of(demand, problem.policy) if any(_offers_option(g, o) for g in gpus)]
    if not options:
        points = [p for p in usable_points(demand) if any(_offers(g, p) for g in gpus)]
        return Unplaced(demand.model, "ObjectiveInfeasible", _fastest(demand, points, problem, rules))
    if not any(_memory_of(g, o) >= o.memory_mib for o in options for g in gpus if _offers_option(g, o)):
        least = min(options, key=lambda o: o.memory_mib)
        most = max(_memory_of(g, o) for o in options for g in gpus if _offers_option(g, o))
        message = (
            f"one replica needs {least.memory_mib} MiB, the largest device it may use has {most} MiB: use a larger GPU"
        )
        return Unplaced(demand.model, "NoMemory", message)
    return None


def _offers_option(gpu: Gpu, option: Option) -> bool:
    if gpu.product != option.product:
        return False
    return any(p.profile == option.mig for p in gpu.placements) if option.mig else gpu.whole


def _memory_of(gpu: Gpu, option: Option) -> int:
    return (
        max((p.memory_mib for p in gpu.placements if p.profile == option.mig), default=0)
        if option.mig
        else gpu.memory_mib
    )


def _fastest(demand: Demand, points: list[ProfilePoint], problem: Problem, rules: Rules) -> str:
    """What the fastest measured point needs, and the objective that could be met at the model's rate."""
    policy = problem.policy

    def needed_ms(point: ProfilePoint) -> float:
        return unloaded_ms(policy.latency_rule, unlimited(demand, point, policy), demand.percentile / 100)

    best = min(points, key=lambda p: (needed_ms(p), p.compute_percent))
    objective_ms = _feasible_ms(demand, needed_ms(best), problem, rules)
    remedy = f"raise the objective to {objective_ms:g} ms" if objective_ms else "lower the rate and raise the objective"
    where = f"MIG {best.mig}" if best.mig else f"{best.compute_percent} % of {best.product}"
    return (
        f"slo.latencyMilliseconds {demand.latency_ms:g} is below the {needed_ms(best):.3g} ms that the fastest "
        f"measured point needs (batch {best.batch} on {where}, p99 {best.p99_us / 1000:.3g} ms) when it is all but "
        f"idle: {remedy}, or tune the model"
    )


_OBJECTIVE_STEP, _OBJECTIVE_STEPS = 1.1, 24


def _feasible_ms(demand: Demand, least_ms: float, problem: Problem, rules: Rules) -> float | None:
    """The least objective, to a tenth, at which the model alone would fit on these GPUs; None if ten times the least
    latency does not do. At the least itself it would have to be all but idle."""

    def ms(step: int) -> float:
        exact = least_ms * _OBJECTIVE_STEP**step
        digit = 10.0 ** (math.floor(math.log10(exact)) - 2)
        # Up, never down: what is said must do. As decimal text gives it, or 44.2 would be 44.2000001.
        return float(f"{math.ceil(exact / digit) * digit:.3g}")

    def fits(step: int) -> bool:
        return _fits_with(replace(demand, latency_ms=ms(step)), problem, rules, (), frozenset())

    low, high = 0, _OBJECTIVE_STEPS
    if not 0 < least_ms < math.inf or not fits(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle + 1, high)
    return ms(high)


def left_out(demand: Demand, problem: Problem, rules: Rules, placed: tuple[Slot, ...], fits_per_s: float) -> Unplaced:
    """Why a model that could run does not fit beside those that are placed."""
    for limit, reason, words in _LIMITS:
        if _fits_with(demand, problem, rules, placed, frozenset({limit})):
            message = f"it would fit but for {words}; {_remedy(reason, demand)}"
            return Unplaced(demand.model, reason, message)
    more = _more_gpus(demand, problem, rules, placed)
    reason = "RateBeyondCluster" if fits_per_s > 0 else "NoRoom"
    room = f"there is room for {fits_per_s:.4g} requests/s" if fits_per_s > 0 else "no device has room for one replica"
    message = f"{demand.requests_per_s:.4g} requests/s (headroom included) do not fit: {room} beside what goes first"
    return Unplaced(demand.model, reason, f"{message}; {more}")


def _remedy(reason: str, demand: Demand) -> str:
    return {
        "NoMemory": "add a GPU, or measure a smaller batch or fewer instances",
        "MaxClients": "add a GPU, or measure fewer instances",
        "Isolation": f"add a GPU, or set sharing.isolation to something wider than {demand.isolation}",
        "NoHostResources": "add a node, or lower podTemplate's cpu and memory",
    }[reason]


def _packed(problem: Problem, rules: Rules, placed: tuple[Slot, ...], ignore: frozenset[str]) -> Packing:
    packing = Packing(problem, rules, ignore)
    for slot in placed:
        packing.add(slot)
    return packing


def _fits_with(
    demand: Demand, problem: Problem, rules: Rules, placed: tuple[Slot, ...], ignore: frozenset[str]
) -> bool:
    packing = _packed(problem, rules, tuple(s for s in placed if s.model != demand.model), ignore)
    fleet = Fleet.of(replace(problem, demands=(demand,)), rules)
    return insert(packing, fleet, demand.model, options_of(demand, problem.policy))


def _more_gpus(demand: Demand, problem: Problem, rules: Rules, placed: tuple[Slot, ...]) -> str:
    """How many empty GPUs of one product more would hold it."""
    fleet = Fleet.of(replace(problem, demands=(demand,)), rules)
    options = options_of(demand, problem.policy)
    others = tuple(s for s in placed if s.model != demand.model)
    best: tuple[int, str] | None = None
    for product in sorted({g.product for g in fleet.allowed[demand.model]}):
        example = next(g for g in fleet.allowed[demand.model] if g.product == product)
        number = _additional(
            demand, replace(problem), example, rules, others, [o for o in options if o.product == product]
        )
        if number is not None and (best is None or number < best[0]):
            best = number, product
    if best is None:
        return "lower its rate or its objective"
    more = f"{best[0]} more GPU{'s' if best[0] > 1 else ''}"
    return f"it needs {more} of {best[1]}, or fewer or lower-rated models beside it"


_MOST_ADDED = 64


def _additional(
    demand: Demand, problem: Problem, example: Gpu, rules: Rules, others: tuple[Slot, ...], options: list[Option]
) -> int | None:
    number = 1
    while number <= _MOST_ADDED:
        added = tuple(replace(example, uuid=f"{example.uuid}+{i}", node=example.node) for i in range(number))
        larger = replace(problem, gpus=(*problem.gpus, *added))
        packing = _packed(larger, rules, others, frozenset({"host"}))
        fleet = Fleet.of(replace(larger, demands=(demand,)), rules)
        if insert(packing, fleet, demand.model, options):
            return number
        number *= 2
    return None


def why_this_share(option: Option, demand: Demand, *, replicas: int, predicted_ms: float) -> str:
    """One line on what was chosen and what limits it."""
    share = f"MIG {option.mig}" if option.mig else f"{option.percent} %"
    each = "" if replicas == 1 else f"{replicas} x "
    load = demand.requests_per_s / (replicas * option.replica_per_s)
    return (
        f"{each}{share} of {option.product}, batch {option.batch}"
        f"{f' x {option.instances} instances' if option.instances > 1 else ''}: "
        f"predicted p{demand.percentile:g} {predicted_ms:.3g} of {demand.latency_ms:g} ms, "
        f"{demand.requests_per_s:.4g} of {replicas * option.replica_per_s:.4g} requests/s ({load:.0%})"
    )
