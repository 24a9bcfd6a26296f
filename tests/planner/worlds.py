"""Small worlds, and an independent check of a plan: written from the rules, not from the planner's code."""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations

from gpulet.model.demand import Demand, ModelId
from gpulet.model.device import Device, Gpu, Node, Placement
from gpulet.model.plan import Plan, Problem, Slot, Usage
from gpulet.model.profile import Profile, ProfilePoint

P = "NVIDIA-TEST-80GB"
CUT = tuple(
    Placement(profile, start, size, compute, memory_mib, clients)
    for profile, starts, size, compute, memory_mib, clients in (
        ("1g.10gb", (0, 1, 2, 3, 4, 5, 6), 1, 1, 9728, 6),
        ("2g.20gb", (0, 2, 4), 2, 2, 19968, 13),
        ("3g.40gb", (0, 4), 4, 3, 40192, 20),
        ("4g.40gb", (0,), 4, 4, 40192, 27),
        ("7g.80gb", (0,), 8, 7, 80640, 48),
    )
    for start in starts
)


def point(
    percent: int,
    *,
    batch: int = 1,
    ms: float = 10.0,
    memory_mib: int = 1000,
    instances: int = 1,
    mig: str | None = None,
    product: str = P,
    p99_ms: float | None = None,
) -> ProfilePoint:
    """A point whose throughput follows from its latency."""
    return ProfilePoint(
        product=product,
        mig=mig,
        compute_percent=percent,
        batch=batch,
        instances=instances,
        mean_us=ms * 1000,
        p50_us=ms * 1000,
        p99_us=(ms if p99_ms is None else p99_ms) * 1000,
        throughput_per_s=batch * instances * 1000 / ms,
        memory_mib=memory_mib,
    )


def gpu(index: int, node: str = "gpu-1", **changes: object) -> Gpu:
    fields: dict[str, object] = {"product": P, "memory_mib": 81920, "clients": 48}
    return Gpu(node=node, uuid=f"GPU-{index}", **(fields | changes))  # type: ignore[arg-type]


def node(name: str = "gpu-1", *, cpu: int = 64000, memory_mib: int = 500_000, **changes: object) -> Node:
    return Node(name, cpu, memory_mib, **changes)  # type: ignore[arg-type]


def demand(name: str, *points: ProfilePoint, rate: float = 10.0, ms: float = 100.0, **changes: object) -> Demand:
    namespace = str(changes.pop("namespace", "vision"))
    return Demand(ModelId(namespace, name), rate, ms, 99, Profile(points), **changes)  # type: ignore[arg-type]


def device(index: int, profile: str | None = None, start: int | None = None, node: str = "gpu-1") -> Device:
    return Device(node, f"GPU-{index}", profile, start)


def faults(problem: Problem, plan: Plan) -> list[str]:
    """Every rule that a plan breaks."""
    found: list[str] = []
    demands = {d.model: d for d in problem.demands}
    gpus = {(g.node, g.uuid): g for g in problem.gpus}
    shares: dict[Device, list[Slot | Usage]] = defaultdict(list)
    for share in (*plan.slots, *problem.usages):
        shares[share.device].append(share)
    for where, users in shares.items():
        if any(isinstance(u, Slot) for u in users):
            found += device_faults(gpus[where.node, where.gpu], where, users, demands)
    for key, one in gpus.items():
        found += cut_faults(one, [d for d in shares if (d.node, d.gpu) == key])
    found += _host_faults(problem, plan, gpus, demands)
    found += _model_faults(problem, plan, gpus, demands)
    if plan.gpus != len({(s.device.node, s.device.gpu) for s in plan.slots}) or plan.gpus < plan.lower_bound:
        found.append(f"{plan.gpus} GPUs, bound {plan.lower_bound}")
    return found


def device_faults(one: Gpu, where: Device, users: list, demands: dict) -> list[str]:
    spot = next((p for p in one.placements if (p.profile, p.start) == (where.profile, where.start)), None)
    if where.profile is not None and spot is None:
        return [f"{where} is not offered"]
    holder = spot if spot is not None else one
    found = []
    if sum(u.compute_percent for u in users) > 100:
        found.append(f"percent on {where}")
    if sum(u.memory_mib for u in users) > holder.memory_mib:
        found.append(f"memory on {where}")
    if sum(u.clients for u in users) > holder.clients:
        found.append(f"clients on {where}")
    who = [
        (u.model.namespace, demands[u.model].isolation) if isinstance(u, Slot) else (u.namespace, u.isolation)
        for u in users
    ]
    for a, b in combinations(who, 2):
        if "None" in (a[1], b[1]) or ("Namespace" in (a[1], b[1]) and a[0] != b[0]):
            found.append(f"isolation on {where}")
    if any(isinstance(u, Usage) and u.purpose in ("tune", "profile") for u in users):
        found.append(f"beside tuning on {where}")
    return found


def cut_faults(one: Gpu, devices: list[Device]) -> list[str]:
    by_name = {(p.profile, p.start): p for p in one.placements}
    spots = [by_name[d.profile, d.start] for d in devices if d.profile is not None]
    found = [f"whole and cut: {one.uuid}"] if spots and len(spots) < len(devices) else []
    slices = [s for p in spots for s in range(p.start, p.start + p.size)]
    if len(slices) != len(set(slices)) or sum(p.compute_slices for p in spots) > one.compute_slices:
        found.append(f"slices of {one.uuid}")
    return found


def _host_faults(problem: Problem, plan: Plan, gpus: dict, demands: dict) -> list[str]:
    found = []
    for host in problem.nodes:
        slots = [s for s in plan.slots if s.device.node == host.name]
        cpu = sum(millicores_of(gpus[s.device.node, s.device.gpu], s, demands[s.model]) for s in slots)
        if cpu > host.free_cpu_millicores or len(slots) > host.free_pods:
            found.append(f"host {host.name}")
        if sum(demands[s.model].host_memory_mib for s in slots) > host.free_memory_mib:
            found.append(f"host memory {host.name}")
        if slots and not host.ready:
            found.append(f"{host.name} is not ready")
    return found


def millicores_of(one: Gpu, slot: Slot, wish: Demand) -> int:
    if not one.simulated_millicores:
        return wish.host_cpu_millicores
    size = next((p.compute_slices for p in one.placements if p.profile == slot.device.profile), one.compute_slices)
    millicores = one.simulated_millicores * size // one.compute_slices
    return -(-millicores * slot.compute_percent // 100)


def _model_faults(problem: Problem, plan: Plan, gpus: dict, demands: dict) -> list[str]:
    found = []
    left_out = {u.model for u in plan.unplaced}
    if {p.model for p in plan.placed} | left_out != set(demands):
        found.append("a model is neither placed nor explained")
    for placed in plan.placed:
        wish = demands[placed.model]
        kinds = {(s.device.profile, s.compute_percent, s.batch, s.instances) for s in placed.slots}
        if len(kinds) != 1 and problem.policy.split == "even":
            found.append(f"{placed.model}: {kinds}")
        if placed.model not in left_out and placed.sustainable_per_s < wish.requests_per_s * (1 - 1e-6):
            found.append(f"{placed.model}: {placed.sustainable_per_s} of {wish.requests_per_s}")
        if placed.predicted_latency_ms > wish.latency_ms * (1 + 1e-6):
            found.append(f"{placed.model}: {placed.predicted_latency_ms} ms")
        for slot in placed.slots:
            one = gpus[slot.device.node, slot.device.gpu]
            refused = any((r.model, r.device) == (slot.model, slot.device) for r in problem.refusals)
            if refused or not one.schedulable or (wish.products and one.product not in wish.products):
                found.append(f"{slot.model} may not be on {slot.device}")
            if wish.nodes is not None and one.node not in wish.nodes:
                found.append(f"{slot.model} may not be on node {one.node}")
    return found + _slot_faults(plan)


def _slot_faults(plan: Plan) -> list[str]:
    found = []
    served = {p.model: p.slots for p in plan.placed}
    for slot in plan.slots:
        if sum(t.busy_us for t in slot.turns) > slot.cycle_us or len({t.model.namespace for t in slot.turns}) > 1:
            found.append(f"turns of {slot.models}")
        if slot.turns and any(served.get(model) != (slot,) for model in slot.models):
            found.append(f"{slot.models} take turns, and one of them elsewhere too")
    if len(plan.slots) != sum(len(p.slots) for p in plan.placed) and not any(s.turns for s in plan.slots):
        found.append("two equal slots")
    if any(len(p.slot_per_s) != len(p.slots) or not p.slots for p in plan.placed):
        found.append("a model without slots, or slots without weights")
    return found
