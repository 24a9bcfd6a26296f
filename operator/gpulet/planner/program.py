"""The aggregated integer program: which option each model takes and how many GPUs of each sort are used how.

GPUs of one sort are interchangeable while they are empty, so that single GPUs drop out. One binary per (model, option);
an option fixes its number of replicas (even split). Integers count the GPUs of a sort that are used whole, per pool of
models that may share, and those that are cut into each column of MIG placements. Sizes on whole GPUs enter by volume
and by what integrality of packing implies (``cuts``), host resources as one sum: a relaxation of the true problem, so
that its dual bound is a proven lower bound of every plan in the decision space (one option per model, even split).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpulet.model.demand import Demand, ModelId
from gpulet.model.device import Device, Gpu
from gpulet.model.plan import Problem
from gpulet.planner.assign import Fleet, Ways
from gpulet.planner.cuts import inequalities
from gpulet.planner.layouts import columns
from gpulet.planner.packing import GpuKey, Packing, Room, share_millicores
from gpulet.planner.pools import Pool, open_pools, pools_for, pools_of
from gpulet.planner.solver import Answer, Program
from gpulet.planner.throughput import Option

COVERS = (
    "one option per model",
    "even split",
    "replicas",
    "batch",
    "mps",
    "mig",
    "memory",
    "clients",
    "isolation",
    "inventory",
)
_NODES = 400
_ABSOLUTE_GAP = 0.999


@dataclass(frozen=True)
class Choice:
    """An answer of the aggregated program."""

    feasible: bool
    """False: proven that not all models fit at once."""
    bound: float
    """No plan of all models costs less."""
    options: Mapping[ModelId, Option] = field(default_factory=dict)
    cuts: Mapping[GpuKey, Mapping[str, int]] = field(default_factory=dict)
    """MIG placements per profile of the GPUs that are to be cut."""


@dataclass(frozen=True)
class Sort:
    """Interchangeable GPUs, by the example of the first."""

    keys: tuple[GpuKey, ...]
    room: Room
    price: float
    pools: tuple[Pool, ...]
    """Empty: it cannot be used whole."""


def choose(problem: Problem, packing: Packing, fleet: Fleet, ways: Ways, *, unit_price: bool = False) -> Choice:
    """``packing``: without slots; it tells what the usages leave. ``unit_price``: count GPUs, whatever they cost."""
    build = _Build(problem, packing, fleet, ways, unit_price=unit_price)
    gap = _ABSOLUTE_GAP if all(sort.price == 1.0 for sort in build.sorts) else 1e-6
    answer = build.program.minimise(absolute_gap=gap, nodes=_NODES)
    if build.hopeless or answer.infeasible:
        return Choice(feasible=False, bound=0.0)
    return build.choice(answer)


class _Build:
    """Variables by what they stand for, while the program is written."""

    def __init__(self, problem: Problem, packing: Packing, fleet: Fleet, ways: Ways, *, unit_price: bool) -> None:
        self.program = Program()
        self.packing = packing
        self.demands = {d.model: d for d in problem.demands if d.model in ways}
        self.pools = pools_of(self.demands.values(), problem.usages)
        self.sorts = self._sorts(fleet, unit_price=unit_price)
        self.fleet = fleet
        self.hopeless = False
        self.pick: dict[tuple[ModelId, Option], int] = {}
        self.whole: dict[tuple[int, Pool], int] = {}
        self.column: dict[tuple[int, tuple[str, ...], tuple[int, ...]], int] = {}
        self._on_whole: dict[tuple[int, Pool], list[tuple[int, Option, Demand]]] = defaultdict(list)
        self._on_mig: dict[tuple[int, str], list[int]] = defaultdict(list)
        self._cpu: dict[int, float] = {}
        self._memory: dict[int, float] = {}
        self._pods: dict[int, float] = {}
        for model in sorted(ways):
            self._model(self.demands[model], ways[model])
        for index, sort in enumerate(self.sorts):
            self._supply(index, sort)
        self._hosts()

    def _sorts(self, fleet: Fleet, *, unit_price: bool) -> list[Sort]:
        groups: dict[int, list[GpuKey]] = defaultdict(list)
        for key in self.packing.rooms:
            groups[fleet.signature[key][1]].append(key)  # the node does not matter: hosts enter as one sum
        sorts = []
        for keys in groups.values():
            room = self.packing.rooms[keys[0]]
            usable = room.gpu.whole and not room.whole_blocked and not room.taken and room.percent > 0
            pools = open_pools(room.tenants, self.pools) if usable else ()
            sorts.append(Sort(tuple(keys), room, 1.0 if unit_price else fleet.price[keys[0]], pools))
        return sorts

    def _model(self, demand: Demand, options: Sequence[Option]) -> None:
        for option in options:
            carriers = self._carriers(demand, option)
            if not carriers:
                continue
            pick = self.program.variable(high=1)
            self.pick[demand.model, option] = pick
            self.program.row({pick: -float(option.replicas)} | dict.fromkeys(carriers, 1.0), low=0, high=0)
        picks = [v for (model, _), v in self.pick.items() if model == demand.model]
        if not picks:
            self.hopeless = True
            return
        self.program.row(dict.fromkeys(picks, 1.0), low=1, high=1)

    def _carriers(self, demand: Demand, option: Option) -> list[int]:
        """One variable per place for the option's replicas: (sort, pool) of whole GPUs, or sort."""
        found = []
        for index, sort in enumerate(self.sorts):
            gpu = sort.room.gpu
            if gpu.product != option.product or not self.fleet.allows(demand.model, gpu):
                continue
            if option.mig:
                if self._placement_holds(sort.room, option):
                    found.append(self._carrier(demand, option, gpu))
                    self._on_mig[index, option.mig].append(found[-1])
            elif _whole_holds(sort.room, option, demand) and not self._refused(demand, sort):
                for pool in pools_for(demand, self.pools):
                    if pool in sort.pools:
                        found.append(self._carrier(demand, option, gpu))
                        self._on_whole[index, pool].append((found[-1], option, demand))
        return found

    def _refused(self, demand: Demand, sort: Sort) -> bool:
        return all(self.packing.rules.refuses(demand.model, Device(node, uuid)) for node, uuid in sort.keys)

    def _placement_holds(self, room: Room, option: Option) -> bool:
        return not room.used_whole and any(
            p.profile == option.mig and option.memory_mib <= p.memory_mib and option.clients <= p.clients
            for p in room.gpu.placements
        )

    def _carrier(self, demand: Demand, option: Option, gpu: Gpu) -> int:
        variable = self.program.variable(integer=False)
        placement = next((p for p in gpu.placements if p.profile == option.mig), None)
        if gpu.simulated_millicores:
            self._cpu[variable] = share_millicores(gpu, placement, option.percent)
        else:
            self._cpu[variable] = demand.host_cpu_millicores
        self._memory[variable] = demand.host_memory_mib
        self._pods[variable] = 1.0
        return variable

    def _supply(self, index: int, sort: Sort) -> None:
        """Rows of one sort: what its whole GPUs and its placements hold, and how many there are."""
        counters: list[int] = []
        for pool in sort.pools:
            users = self._on_whole[index, pool]
            if users:
                counter = self.program.variable(cost=sort.price, high=len(sort.keys))
                self.whole[index, pool] = counter
                counters.append(counter)
                self._whole_rows(sort.room, users, counter)
        profiles = tuple(sorted({profile for i, profile in self._on_mig if i == index}))
        if profiles:
            counters += self._mig_rows(index, sort, profiles)
        if counters:
            self.program.row(dict.fromkeys(counters, 1.0), high=len(sort.keys))

    def _whole_rows(self, room: Room, users: list[tuple[int, Option, Demand]], counter: int) -> None:
        for sizes, capacity in (
            ([_percent(option, demand, room) for _, option, demand in users], room.percent),
            ([option.memory_mib for _, option, _ in users], room.memory_mib),
            ([option.clients for _, option, _ in users], room.clients),
        ):
            for weights in inequalities(sizes, capacity):
                terms = {
                    variable: weights[size]
                    for (variable, _, _), size in zip(users, sizes, strict=True)
                    if weights.get(size, 0.0)
                }
                self.program.row(terms | {counter: -1.0}, high=0)

    def _mig_rows(self, index: int, sort: Sort, profiles: tuple[str, ...]) -> list[int]:
        gpu = sort.room.gpu
        counters = []
        supply: dict[str, dict[int, float]] = defaultdict(dict)
        for column in columns(gpu.placements, gpu.compute_slices, profiles, tuple(sorted(sort.room.taken))):
            counter = self.program.variable(cost=sort.price, high=len(sort.keys))
            self.column[index, profiles, column] = counter
            counters.append(counter)
            for profile, number in zip(profiles, column, strict=True):
                supply[profile][counter] = -float(number)
        for profile in profiles:
            self.program.row(dict.fromkeys(self._on_mig[index, profile], 1.0) | supply[profile], high=0)
        return counters

    def _hosts(self) -> None:
        hosts = self.packing.hosts.values()
        self.program.row(self._cpu, high=sum(h.cpu_millicores for h in hosts))
        self.program.row(self._memory, high=sum(h.memory_mib for h in hosts))
        self.program.row(self._pods, high=sum(h.pods for h in hosts))

    def choice(self, answer: Answer) -> Choice:
        if answer.values is None:
            return Choice(feasible=True, bound=answer.bound)
        options = {model: option for (model, option), variable in self.pick.items() if answer.values[variable] > 0.5}
        cuts: dict[GpuKey, Mapping[str, int]] = {}
        # Whole GPUs are taken from the front of a sort, cut ones from its end: none is both.
        position = {index: len(sort.keys) for index, sort in enumerate(self.sorts)}
        for (index, profiles, column), variable in self.column.items():
            for _ in range(round(answer.values[variable])):
                position[index] -= 1
                cuts[self.sorts[index].keys[position[index]]] = dict(zip(profiles, column, strict=True))
        return Choice(True, answer.bound, options, cuts)


def _percent(option: Option, demand: Demand, room: Room) -> int:
    """What the share takes of the device: all that is there if it shares with nobody."""
    return room.percent if demand.isolation == "None" else option.percent


def _whole_holds(room: Room, option: Option, demand: Demand) -> bool:
    alone = demand.isolation != "None" or not room.tenants
    return (
        alone
        and option.percent <= room.percent
        and option.memory_mib <= room.memory_mib
        and option.clients <= room.clients
    )
