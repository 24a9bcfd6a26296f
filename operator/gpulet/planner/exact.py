"""The integer program over single GPUs: exact for small problems, in every limit the packing knows.

Two questions are asked with it: what is the least cost (independent of what exists now, so that asking again gives the
same answer), and, at that cost, how many of the existing replicas can stay.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpulet.model.demand import Demand, ModelId
from gpulet.model.device import Device, Gpu
from gpulet.model.plan import Problem
from gpulet.planner.assign import Fleet, Ways, volume
from gpulet.planner.layouts import columns
from gpulet.planner.packing import GpuKey, Packing, Room, key_of, share_millicores
from gpulet.planner.pools import Pool, open_pools, pools_for, pools_of
from gpulet.planner.solver import Answer, Program
from gpulet.planner.throughput import Option

MAX_VARIABLES = 3000
_NODES = 1500
_KEEP_WORTH = 1.0
_VOLUME_WORTH = 1e-3
Standing = Mapping[tuple[ModelId, Option, GpuKey], int]
"""Existing replicas that may stay, counted by model, option and GPU."""


@dataclass(frozen=True)
class Exact:
    """An answer of the program."""

    feasible: bool
    bound: float = 0.0
    proven: bool = False
    cost: float | None = None
    replicas: Mapping[tuple[ModelId, Option, GpuKey], int] = field(default_factory=dict)


def size_of(fleet: Fleet, ways: Ways) -> int:
    """How many variables the program would have, roughly."""
    return sum(
        1
        for model, options in ways.items()
        for option in options
        for g in fleet.allowed[model]
        if g.product == option.product
    )


def least_cost(problem: Problem, packing: Packing, fleet: Fleet, ways: Ways) -> Exact:
    """``packing``: without slots; it tells what usages and hosts leave."""
    build = _Build(problem, packing, fleet, ways)
    for variable, price in build.used:
        build.objective[variable] = price
    build.in_order(fleet)
    return build.solve(gap=0.999 if set(fleet.price.values()) == {1.0} else 1e-6)


def most_kept(
    problem: Problem, packing: Packing, fleet: Fleet, ways: Ways, *, cost: float, standing: Standing
) -> Exact:
    """At ``cost`` at most, with as many standing replicas as possible, then the least volume."""
    build = _Build(problem, packing, fleet, ways)
    build.program.row(dict(build.used), high=cost + 1e-6)
    for place, variable in build.replicas.items():
        _, option, key = place
        build.objective[variable] = _VOLUME_WORTH * volume(option, packing.rooms[key].gpu) / option.replicas
        if standing.get(place):
            kept = build.program.variable(high=float(standing[place]))
            build.program.row({kept: 1.0, variable: -1.0}, high=0)
            build.objective[kept] = -_KEEP_WORTH
    return build.solve(gap=1e-4)


class _Build:
    """The rows that both questions share."""

    def __init__(self, problem: Problem, packing: Packing, fleet: Fleet, ways: Ways) -> None:
        self.program = Program()
        self.packing = packing
        self.demands = {d.model: d for d in problem.demands if d.model in ways}
        self.pools = pools_of(self.demands.values(), problem.usages)
        self.replicas: dict[tuple[ModelId, Option, GpuKey], int] = {}
        self.used: list[tuple[int, float]] = []
        self.objective: dict[int, float] = {}
        self.hopeless = False
        self._of_gpu: dict[GpuKey, list[tuple[Demand, Option, int]]] = defaultdict(list)
        for model in sorted(ways):
            self._model(self.demands[model], [o for o in ways[model]], fleet.allowed[model])
        self._counter: dict[GpuKey, list[int]] = defaultdict(list)
        for key, users in self._of_gpu.items():
            self._gpu(self.packing.rooms[key], users, fleet.price[key])
        for node in self.packing.hosts:
            self._host(node)

    def _model(self, demand: Demand, options: list[Option], gpus: tuple[Gpu, ...]) -> None:
        picks = {}
        for option in options:
            homes = [self._replica(demand, option, gpu) for gpu in gpus if self._holds(demand, option, gpu)]
            if homes:
                pick = self.program.variable(high=1)
                picks[pick] = 1.0
                self.program.row(dict.fromkeys(homes, 1.0) | {pick: -float(option.replicas)}, low=0, high=0)
        if picks:
            self.program.row(picks, low=1, high=1)
        else:
            self.hopeless = True

    def _holds(self, demand: Demand, option: Option, gpu: Gpu) -> bool:
        room = self.packing.rooms[key_of(gpu)]
        if gpu.product != option.product:
            return False
        if option.mig:
            starts = [p for p in gpu.placements if p.profile == option.mig]
            return not room.used_whole and any(
                option.memory_mib <= p.memory_mib
                and option.clients <= p.clients
                and not self.packing.rules.refuses(demand.model, Device(gpu.node, gpu.uuid, p.profile, p.start))
                for p in starts
            )
        return (
            gpu.whole
            and not room.whole_blocked
            and option.percent <= room.percent
            and option.memory_mib <= room.memory_mib
            and option.clients <= room.clients
            and not (demand.isolation == "None" and room.tenants)
            and not self.packing.rules.refuses(demand.model, Device(gpu.node, gpu.uuid))
        )

    def _replica(self, demand: Demand, option: Option, gpu: Gpu) -> int:
        variable = self.program.variable(high=float(option.replicas))
        self.replicas[demand.model, option, key_of(gpu)] = variable
        self._of_gpu[key_of(gpu)].append((demand, option, variable))
        return variable

    def _gpu(self, room: Room, users: list[tuple[Demand, Option, int]], price: float) -> None:
        key = key_of(room.gpu)
        counters = self._whole(room, [u for u in users if not u[1].mig])
        counters += self._cut(room, [u for u in users if u[1].mig])
        self._counter[key] = counters
        self.program.row(dict.fromkeys(counters, 1.0), high=1)
        self.used += [(counter, price) for counter in counters]

    def _whole(self, room: Room, users: list[tuple[Demand, Option, int]]) -> list[int]:
        if not users:
            return []
        pools = {pool: self.program.variable(high=1) for pool in open_pools(room.tenants, self.pools)}
        for sizes, capacity in (
            ([room.percent if d.isolation == "None" else o.percent for d, o, _ in users], room.percent),
            ([o.memory_mib for _, o, _ in users], room.memory_mib),
            ([o.clients for _, o, _ in users], room.clients),
        ):
            terms = {v: s / capacity for (_, _, v), s in zip(users, sizes, strict=True)}
            self.program.row(terms | dict.fromkeys(pools.values(), -1.0), high=0)
        for demand, option, variable in users:
            size = room.percent if demand.isolation == "None" else option.percent
            most = float(min(option.replicas, room.percent // size))
            own = {pools[p]: -most for p in self._pools(demand) if p in pools}
            self.program.row({variable: 1.0} | own, high=0)
        return list(pools.values())

    def _pools(self, demand: Demand) -> tuple[Pool, ...]:
        return self.pools if demand.isolation == "None" else pools_for(demand, self.pools)

    def _cut(self, room: Room, users: list[tuple[Demand, Option, int]]) -> list[int]:
        profiles = tuple(sorted({o.mig for _, o, _ in users}))
        if not profiles:
            return []
        gpu = room.gpu
        supply: dict[str, dict[int, float]] = {p: {} for p in profiles}
        counters = []
        for column in columns(gpu.placements, gpu.compute_slices, profiles, tuple(sorted(room.taken))):
            counter = self.program.variable(high=1)
            counters.append(counter)
            for profile, number in zip(profiles, column, strict=True):
                supply[profile][counter] = -float(number)
        for profile in profiles:
            self.program.row({v: 1.0 for _, o, v in users if o.mig == profile} | supply[profile], high=0)
        return counters

    def _host(self, node: str) -> None:
        host = self.packing.hosts[node]
        cpu: dict[int, float] = {}
        memory: dict[int, float] = {}
        for key, users in self._of_gpu.items():
            if key[0] != node:
                continue
            gpu = self.packing.rooms[key].gpu
            for demand, option, variable in users:
                spot = next((p for p in gpu.placements if p.profile == option.mig), None)
                simulated = share_millicores(gpu, spot, option.percent)
                cpu[variable] = float(simulated if gpu.simulated_millicores else demand.host_cpu_millicores)
                memory[variable] = float(demand.host_memory_mib)
        self.program.row(cpu, high=host.cpu_millicores)
        self.program.row(memory, high=host.memory_mib)
        self.program.row(dict.fromkeys(cpu, 1.0), high=host.pods)

    def in_order(self, fleet: Fleet) -> None:
        """Of interchangeable GPUs the earlier are used first: one plan is not searched for in all its permutations."""
        last: dict[tuple[str, int], GpuKey] = {}
        for key in sorted(self._counter):
            before = last.get(fleet.signature[key])
            if before is not None:
                ahead = dict.fromkeys(self._counter[before], 1.0)
                self.program.row(ahead | dict.fromkeys(self._counter[key], -1.0), low=0)
            last[fleet.signature[key]] = key

    def solve(self, *, gap: float) -> Exact:
        if self.hopeless:
            return Exact(feasible=False, proven=True)
        self.program.set_costs(self.objective)
        answer = self.program.minimise(absolute_gap=gap, nodes=_NODES)
        if answer.infeasible:
            return Exact(feasible=False, proven=True)
        if answer.values is None:
            return Exact(feasible=False, bound=answer.bound)
        return Exact(True, answer.bound, answer.optimal, self._cost(answer), self._counts(answer))

    def _cost(self, answer: Answer) -> float:
        assert answer.values is not None
        return sum(price * answer.values[variable] for variable, price in self.used)

    def _counts(self, answer: Answer) -> dict[tuple[ModelId, Option, GpuKey], int]:
        assert answer.values is not None
        return {place: n for place, variable in self.replicas.items() if (n := round(answer.values[variable]))}
