"""Room that a plan leaves: where a share for tuning or profiling can go without a serving slot beside it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from gpulet.model.demand import Isolation
from gpulet.model.device import Device, Gpu, Placement
from gpulet.model.plan import Plan, Problem, RoomRequest, Usage
from gpulet.planner.eligibility import Rules
from gpulet.planner.layouts import fits_beside
from gpulet.planner.packing import GpuKey, key_of, may_share, share_millicores

_ISOLATION: dict[str, Isolation] = {"tune": "Any", "profile": "None"}
"""Tuners share a device with tuners; a measurement that is to be believed has no neighbours at all."""


def find_room(problem: Problem, plan: Plan, ask: RoomRequest) -> Device | None:
    """The device that the share takes least away by; None if there is none.

    A device of the same purpose with room left comes first, then a free whole GPU, then a free MIG placement, on a GPU
    that is cut already before one that is not, the smallest first. The policy's transition reserve may be used: what
    is found here yields to serving.
    """
    rules = Rules.of(problem)
    occupied = _occupied(problem, plan)
    best: tuple[tuple[object, ...], Device] | None = None
    for gpu in sorted(problem.gpus, key=key_of):
        if (ask.product not in (None, gpu.product)) or rules.why_not(ask, gpu) is not None:
            continue
        for rank, device, placement in _devices(gpu, occupied[key_of(gpu)], ask):
            if _host_holds(problem, plan, gpu, placement, ask) and (best is None or rank < best[0]):
                best = rank, device
    return best[1] if best else None


def _occupied(problem: Problem, plan: Plan) -> dict[GpuKey, list[Usage]]:
    """What is on each GPU, planned slots and existing replicas as usages that share with nobody who asks here.

    Replicas that are about to go still run while their successors start: their room is not free yet.
    """
    result: dict[GpuKey, list[Usage]] = defaultdict(list)
    for usage in problem.usages:
        result[key_of(usage.device)].append(usage)
    for slot in (*plan.slots, *problem.current):
        share = Usage(
            slot.device, slot.compute_percent, slot.memory_mib, slot.clients, slot.model.namespace, "None", "serve"
        )
        result[key_of(slot.device)].append(share)
    return result


def _devices(
    gpu: Gpu, usages: list[Usage], ask: RoomRequest
) -> Iterator[tuple[tuple[object, ...], Device, Placement | None]]:
    """Devices of one GPU on which the share fits, each with its rank."""
    names = {(p.profile, p.start): p for p in gpu.placements}
    cut = [p for u in usages if (p := names.get((u.device.profile or "", u.device.start or 0))) is not None]
    is_cut = any(u.device.profile is not None for u in usages)
    whole = Device(gpu.node, gpu.uuid)
    if ask.mig is None and gpu.whole and not is_cut and _fits(usages, gpu.memory_mib, gpu.clients, ask):
        yield (0 if usages else 1, 0, gpu.memory_mib, key_of(gpu)), whole, None
    if any(u.device.profile is None for u in usages):
        return
    for placement in gpu.placements:
        if ask.mig not in (None, placement.profile):
            continue
        device = Device(gpu.node, gpu.uuid, placement.profile, placement.start)
        here = [u for u in usages if u.device == device]
        free = bool(here) or fits_beside(placement, set(cut), gpu.compute_slices)
        if free and _fits(here, placement.memory_mib, placement.clients, ask):
            rank = (0 if here else 2, 0 if is_cut else 1, placement.memory_mib, placement.compute_slices)
            yield (*rank, key_of(gpu), placement.start), device, placement


def _fits(usages: list[Usage], memory_mib: int, clients: int, ask: RoomRequest) -> bool:
    """Whether the share fits beside those of the device, all of which must be of its own purpose and agree."""
    percent = sum(u.compute_percent for u in usages) + ask.compute_percent
    return (
        percent <= 100
        and sum(u.memory_mib for u in usages) + ask.memory_mib <= memory_mib
        and sum(u.clients for u in usages) + ask.clients <= clients
        and all(u.purpose == ask.purpose for u in usages)
        and all(may_share(ask.namespace, _ISOLATION[ask.purpose], u.namespace, u.isolation) for u in usages)
    )


def _host_holds(problem: Problem, plan: Plan, gpu: Gpu, placement: Placement | None, ask: RoomRequest) -> bool:
    """Whether the node holds one more pod beside those of the plan and those of existing replicas."""
    node = next(n for n in problem.nodes if n.name == gpu.node)
    gpus = {key_of(g): g for g in problem.gpus}
    demands = {d.model: d for d in problem.demands}
    cpu, memory_mib, pods = _needs(gpu, placement, ask.compute_percent, ask.host_cpu_millicores), ask.host_memory_mib, 1
    for slot in {*plan.slots, *problem.current}:
        at = gpus.get(key_of(slot.device))
        demand = demands.get(slot.model)
        if slot.device.node != gpu.node or at is None:
            continue
        spot = next(
            (p for p in at.placements if (p.profile, p.start) == (slot.device.profile, slot.device.start)), None
        )
        cpu += _needs(at, spot, slot.compute_percent, demand.host_cpu_millicores if demand else 0)
        memory_mib += demand.host_memory_mib if demand else 0
        pods += 1
    return cpu <= node.free_cpu_millicores and memory_mib <= node.free_memory_mib and pods <= node.free_pods


def _needs(gpu: Gpu, placement: Placement | None, percent: int, otherwise: int) -> int:
    return share_millicores(gpu, placement, percent) if gpu.simulated_millicores else otherwise
