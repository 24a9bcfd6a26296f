"""What there is to take: kinds of slots in blocks of interchangeable GPUs, and what each model does on each kind.

A block is one way to use the GPUs of one sort: cut into MIG placements, or whole and shared by MPS within one pool of
models that may share. Its columns are the multisets of slots that one GPU holds. GPU identity drops out: slots of one
kind are interchangeable. Memory and clients of whole GPUs count by volume, host resources are left to ``seats``: that
can only lower a bound.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gpulet.model.demand import Demand
from gpulet.model.device import Device
from gpulet.model.plan import Problem
from gpulet.planner.assign import Fleet
from gpulet.planner.layouts import columns as mig_columns
from gpulet.planner.packing import GpuKey, Packing, Room
from gpulet.planner.pools import Pool, open_pools, pools_for, pools_of
from gpulet.planner.throughput import Option
from gpulet.planner.weighted.catalogue import Catalogue, Share
from gpulet.planner.weighted.multisets import multisets

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
ALONE: Pool = "(alone)"
"""No namespace has such a name. Its models share a device with nobody."""
_MAX_KINDS = 480
_LEAST_RATE_PER_S = 1e-6
"""Even a model without load has one replica."""


@dataclass(frozen=True)
class Sort:
    """GPUs that are interchangeable while they are empty, by the example of the first."""

    keys: tuple[GpuKey, ...]
    room: Room
    price: float


@dataclass
class Block:
    """One way to use the GPUs of one sort."""

    sort: int
    pool: Pool | None
    """Of models that share whole GPUs; None: the GPUs are cut."""
    first: int
    """Its kinds are ``first`` to ``first + len(shares) - 1``."""
    shares: tuple[tuple[str, int], ...]
    """MIG profile (or empty) and percent of each kind."""
    weights: Floats
    """Part of a GPU that a slot nominally costs, per kind."""
    columns: list[tuple[int, ...]]
    """Slots per kind that one GPU holds."""
    complete: bool
    """False: only some columns are listed, others are found as they are needed."""
    capacity: int = 100
    """Percent of the device that whole-GPU columns divide."""
    extra: tuple[int, ...] = ()
    """Where in a widened vector its memory and clients are, if these may bind before the percent does."""

    @property
    def index(self) -> Ints:
        """Where its kinds, then its memory and clients, are in a widened vector."""
        return np.array([*range(self.kinds.start, self.kinds.stop), *self.extra], dtype=np.int64)

    @property
    def kinds(self) -> slice:
        return slice(self.first, self.first + len(self.shares))

    @property
    def percents(self) -> tuple[int, ...]:
        return tuple(percent for _, percent in self.shares)


@dataclass
class Market:
    """Models, in the order of their names, against kinds."""

    demands: tuple[Demand, ...]
    rates: Floats
    sorts: tuple[Sort, ...]
    blocks: list[Block]
    per_s: Floats
    """Models x kinds: requests/s of one replica in such a slot; 0: not possible."""
    ways: list[Mapping[int, tuple[Option, ...]]]
    """Per model: kind -> options, best first."""
    relaxed: tuple[str, ...]
    """Limits that the blocks leave out beyond hosts."""
    uniform: bool = False
    """All replicas of a model are alike (even split)."""
    held: Floats = field(default_factory=lambda: np.zeros((2, 0, 0)))
    """Memory and clients x models x kinds: part of the whole GPU that one replica holds at least."""

    @property
    def kinds(self) -> int:
        return int(self.per_s.shape[1])

    def islands(self) -> Ints:
        """Per model a number that it shares with all models whose slots can be on the same GPUs (by way of others)."""
        home = list(range(len(self.blocks)))

        def root(block: int) -> int:
            while home[block] != block:
                block = home[block]
            return block

        own: dict[int, int] = {}
        for kinds in self.ways:
            if id(kinds) not in own:
                used = [i for i, b in enumerate(self.blocks) if any(b.kinds.start <= k < b.kinds.stop for k in kinds)]
                for block in used[1:]:
                    home[root(block)] = root(used[0])
                own[id(kinds)] = used[0] if used else 0
        return np.array([root(own[id(kinds)]) for kinds in self.ways], dtype=np.int64)

    @property
    def width(self) -> int:
        """Kinds, and memory and clients of the blocks where these may bind."""
        return self.kinds + sum(len(block.extra) for block in self.blocks)

    def widened(self, counts: Floats | Ints, model: Ints) -> Floats:
        """Slots per kind, and behind them the memory and clients that they hold; ``model``: of each row."""
        wide = np.zeros((len(counts), self.width))
        wide[:, : self.kinds] = counts
        known = np.flatnonzero(model < len(self.demands))  # behind the models are bundles: they count by their slots
        for block in self.blocks:
            for held, index in zip(self.held, block.extra, strict=False):
                wide[known, index] = (counts[known][:, block.kinds] * held[model[known]][:, block.kinds]).sum(axis=1)
        return wide

    def price(self, block: Block) -> float:
        return self.sorts[block.sort].price

    def impossible(self) -> list[int]:
        """Models that fit no kind at all."""
        return [int(m) for m in np.flatnonzero(~(self.per_s > 0).any(axis=1))]


def market_of(problem: Problem, packing: Packing, fleet: Fleet, catalogue: Catalogue) -> Market:
    """``packing``: without slots; it tells what usages leave."""
    demands = tuple(sorted(problem.demands, key=lambda d: d.model))
    pools = pools_of(demands, problem.usages)
    built = _Build(demands, packing, fleet, catalogue, pools)
    if built.kinds > _MAX_KINDS and len(pools) > 1:
        built = _Build(demands, packing, fleet, catalogue, None)
    return built.market(problem)


class _Build:
    def __init__(
        self,
        demands: tuple[Demand, ...],
        packing: Packing,
        fleet: Fleet,
        catalogue: Catalogue,
        pools: tuple[Pool, ...] | None,
    ) -> None:
        """``pools``: None if the blocks leave out who may share with whom."""
        self.demands = demands
        self.packing = packing
        self.fleet = fleet
        self.catalogue = catalogue
        self.pools = pools
        self.sorts = self._sorts()
        self.blocks: list[Block] = []
        self.kinds = 0
        self._shares = self._shares_wanted()
        for index, sort in enumerate(self.sorts):
            self._cut(index, sort)
            self._whole(index, sort)

    def _sorts(self) -> tuple[Sort, ...]:
        groups: dict[object, list[GpuKey]] = defaultdict(list)
        for key in self.packing.rooms:
            groups[self.fleet.signature[key][1]].append(key)
        usable = [
            keys for keys in groups.values() if any(key in allowed for allowed in self._allowed() for key in keys)
        ]
        return tuple(Sort(tuple(k), self.packing.rooms[k[0]], self.fleet.price[k[0]]) for k in usable)

    def _allowed(self) -> list[frozenset[GpuKey]]:
        return list({id(keys): keys for keys in self.fleet.allowed_keys.values()}.values())

    def _shares_wanted(self) -> dict[str, set[Share]]:
        """Per product the kinds of shares that any model can use, by pool."""
        found: dict[str, set[Share]] = defaultdict(set)
        seen = set()
        for demand in self.demands:
            key = (self.catalogue.class_of(demand), self._pools(demand))
            if key in seen:
                continue
            seen.add(key)
            for share in self.catalogue.options(demand):
                for pool in ("",) if share[1] else self._pools(demand):
                    found[pool if not share[1] else "(mig)"].add(share)
        return found

    def _pools(self, demand: Demand) -> tuple[Pool, ...]:
        if demand.isolation == "None":
            return (ALONE,)
        return pools_for(demand, self.pools) if self.pools is not None else ("",)

    def _cut(self, index: int, sort: Sort) -> None:
        room = sort.room
        gpu = room.gpu
        offered = {p.profile: p for p in gpu.placements}
        wanted = {s[1] for s in self._shares["(mig)"] if s[0] == gpu.product and s[1] in offered}
        profiles = tuple(sorted(wanted, key=lambda p: (offered[p].compute_slices, offered[p].size, p)))
        if not profiles or room.used_whole:
            return
        found = mig_columns(gpu.placements, gpu.compute_slices, profiles, tuple(sorted(room.taken)))
        if not found:
            return
        weights = np.array([offered[p].compute_slices / gpu.compute_slices for p in profiles])
        self._add(Block(index, None, self.kinds, tuple((p, 100) for p in profiles), weights, list(found), True))

    def _whole(self, index: int, sort: Sort) -> None:
        room = sort.room
        if not room.gpu.whole or room.whole_blocked or room.taken or room.percent <= 0:
            return
        open_for = ("",) if self.pools is None else open_pools(room.tenants, self.pools)
        for pool in sorted(self._shares):
            alone = pool == ALONE and not room.tenants
            if pool == "(mig)" or not (alone or pool in open_for):
                continue
            percents = sorted({s[2] for s in self._shares[pool] if s[0] == room.gpu.product and s[2] <= room.percent})
            if alone and percents:
                percents = [room.percent]
            if percents:
                self._shared(index, room, pool, tuple(percents))

    def _shared(self, index: int, room: Room, pool: Pool, percents: tuple[int, ...]) -> None:
        found = multisets(percents, room.percent)
        single = [
            tuple(int(i == k) * (room.percent // p) for i in range(len(percents))) for k, p in enumerate(percents)
        ]
        weights = np.array(percents) / room.percent
        shares = tuple(("", p) for p in percents)
        columns = list(found) if found is not None else single
        self._add(Block(index, pool, self.kinds, shares, weights, columns, found is not None, room.percent))

    def _add(self, block: Block) -> None:
        self.blocks.append(block)
        self.kinds += len(block.shares)

    def market(self, problem: Problem) -> Market:
        rows: dict[object, tuple[Floats, Mapping[int, tuple[Option, ...]]]] = {}
        found = []
        for demand in self.demands:
            refused = self.packing.rules.refused.get(demand.model)
            where = id(self.fleet.allowed_keys[demand.model])
            key = (self.catalogue.class_of(demand), where, self._pools(demand), refused)
            if key not in rows:
                rows[key] = self._row(demand)
            found.append(rows[key])
        per_s = np.array([row for row, _ in found]).reshape(len(self.demands), self.kinds)
        rates = np.array([max(d.requests_per_s, _LEAST_RATE_PER_S) for d in self.demands])
        relaxed = () if self.pools is not None else ("isolation",)
        ways, uniform = [w for _, w in found], problem.policy.split == "even"
        market = Market(self.demands, rates, self.sorts, self.blocks, per_s, ways, relaxed, uniform)
        market.held = self._held(ways)
        return market

    def _held(self, ways: list[Mapping[int, tuple[Option, ...]]]) -> Floats:
        """What replicas hold of whole GPUs; blocks in which that is more than their percent get an extra for it."""
        held = np.zeros((2, len(ways), self.kinds))
        rows: dict[int, Floats] = {}
        for model, kinds in enumerate(ways):
            if id(kinds) not in rows:
                rows[id(kinds)] = self._row_held(kinds)
            held[:, model] = rows[id(kinds)]
        behind = self.kinds
        for block in self.blocks:
            if block.pool is not None and (held[:, :, block.kinds] > block.weights + 1e-9).any():
                block.extra = (behind, behind + 1)
                behind += 2
        return held

    def _row_held(self, kinds: Mapping[int, tuple[Option, ...]]) -> Floats:
        row = np.zeros((2, self.kinds))
        for block in self.blocks:
            room = self.sorts[block.sort].room
            for kind in range(block.kinds.start, block.kinds.stop) if block.pool is not None else ():
                options = kinds.get(kind, ())
                if options:
                    row[0, kind] = min(o.memory_mib for o in options) / room.memory_mib
                    row[1, kind] = min(o.clients for o in options) / room.clients
        return row

    def _row(self, demand: Demand) -> tuple[Floats, Mapping[int, tuple[Option, ...]]]:
        per_s = np.zeros(self.kinds)
        ways: dict[int, tuple[Option, ...]] = {}
        options = self.catalogue.options(demand)
        for block in self.blocks:
            sort = self.sorts[block.sort]
            if not self.fleet.allows(demand.model, sort.room.gpu) or not self._open_to(demand, block, sort):
                continue
            for offset, (mig, percent) in enumerate(block.shares):
                share = (sort.room.gpu.product, mig, percent)
                candidates = options.get(share, ()) if block.pool != ALONE else self._largest(options, sort.room)
                usable = tuple(o for o in candidates if _holds(sort.room, o))
                if usable:
                    ways[block.first + offset] = usable
                    per_s[block.first + offset] = usable[0].replica_per_s
        return per_s, ways

    def _open_to(self, demand: Demand, block: Block, sort: Sort) -> bool:
        if block.pool is None:
            return True
        refused = all(self.packing.rules.refuses(demand.model, Device(node, uuid)) for node, uuid in sort.keys)
        return block.pool in self._pools(demand) and not refused

    def _largest(self, options: Mapping[Share, tuple[Option, ...]], room: Room) -> tuple[Option, ...]:
        """A model that shares with nobody takes what is there, by the largest share that was measured of it."""
        fitting = [s for s in options if s[0] == room.gpu.product and not s[1] and s[2] <= room.percent]
        return options[max(fitting, key=lambda s: s[2])] if fitting else ()


def _holds(room: Room, option: Option) -> bool:
    if option.mig:
        return any(
            p.profile == option.mig and option.memory_mib <= p.memory_mib and option.clients <= p.clients
            for p in room.gpu.placements
        )
    return option.memory_mib <= room.memory_mib and option.clients <= room.clients
