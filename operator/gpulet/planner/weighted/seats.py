"""From numbers to slots: which GPU is cut into which column, at which starts, and who takes which seat.

Existing replicas stay where they are. Memory, clients, isolation and hosts are obeyed here seat by seat; who finds no
seat is placed by best fit, in another size if need be.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from gpulet.model.demand import ModelId
from gpulet.model.device import Device, Placement
from gpulet.model.plan import Slot
from gpulet.planner.assign import Fleet, best_slot, next_ordinal, slot_of, volume
from gpulet.planner.layouts import arrangement
from gpulet.planner.packing import GpuKey, Packing, key_of
from gpulet.planner.throughput import Option
from gpulet.planner.weighted.layout import Columns
from gpulet.planner.weighted.market import ALONE, Block, Ints, Market
from gpulet.planner.weighted.standing import COVERED, Held, superfluous


class Bundle(Protocol):
    """Models that take turns in one gpulet."""

    def slot(self, kind: int, device: Device) -> Slot: ...


_TRIES = 12
"""Models that a seat is offered to before it stays empty."""
Column = tuple[int, ...]
Spots = tuple[Placement, ...]


class Seating:
    """Fills a packing without slots."""

    def __init__(
        self,
        market: Market,
        packing: Packing,
        fleet: Fleet,
        held: Mapping[ModelId, list[Held]],
        bundles: Sequence[Bundle] = (),
    ) -> None:
        """``bundles``: models that take turns; the rows of ``replicas`` behind those of the models."""
        self.market = market
        self.packing = packing
        self.fleet = fleet
        self.held = held
        self.bundles = bundles
        self.sort_of: dict[GpuKey, int] = {key: i for i, sort in enumerate(market.sorts) for key in sort.keys}
        self.queues: dict[int, deque[int]] = {}
        self.repaired = False
        """Whether somebody found no seat in the layout."""
        self._stay: dict[GpuKey, list[Slot]] = defaultdict(list)
        self._now: dict[GpuKey, list[Slot]] = defaultdict(list)
        for one in (one for found in held.values() for one in found):
            self._now[key_of(one.slot.device)].append(one.slot)
        self._cut: dict[
            tuple[int, Column, tuple[Placement, ...], tuple[Placement, ...]], tuple[Placement, ...] | None
        ] = {}

    def run(self, replicas: Ints, columns: Columns) -> Packing | None:
        """The packing with slots for all replicas, or for as many of another size; None if somebody finds no room."""
        left = replicas.copy()
        self._keep(left)
        self.queues = _queues(left)
        remaining = dict(columns)
        homes = self._homes(remaining)
        for key, block, column in homes:
            self._fill(key, block, column)
        return self.packing if self._place_others() else None

    def kind_of(self, slot: Slot, model: int) -> int | None:
        """The kind of slot that this is for the model, if its kind is among the market's."""
        sort = self.sort_of.get(key_of(slot.device))
        for kind in self.market.ways[model]:
            block = next(b for b in self.market.blocks if b.kinds.start <= kind < b.kinds.stop)
            share = (slot.device.profile or "", slot.compute_percent)
            if block.sort == sort and (block.shares[kind - block.first] == share or block.pool == ALONE):
                return kind
        return None

    def _keep(self, left: Ints) -> None:
        for index, demand in enumerate(self.market.demands):
            for one in self.held.get(demand.model, ()):
                kind = self.kind_of(one.slot, index)
                if kind is None or left[index, kind] < 1 or not self.packing.fits(one.slot):
                    continue
                alike = not self.market.uniform or same_way(one.option, self.market.ways[index][kind][0])
                if alike and one.option.replica_per_s >= self.market.per_s[index, kind] * COVERED:
                    self.packing.add(one.slot)
                    self._stay[key_of(one.slot.device)].append(one.slot)
                    left[index, kind] -= 1

    def _homes(self, remaining: dict[tuple[int, Column], int]) -> list[tuple[GpuKey, Block, Column]]:
        """A GPU for every column: those with replicas that stay keep a column that holds them."""
        found = []
        occupied = set()
        for key in sorted(self.packing.open):
            choice = self._column_around(key, remaining)
            occupied.add(key)
            if choice is not None:
                remaining[choice] -= 1
                found.append((key, self.market.blocks[choice[0]], choice[1]))
        # GPUs whose replicas all go are taken last: cutting them anew has to wait for those.
        empty = [
            deque(sorted((k for k in sort.keys if k not in occupied), key=lambda k: k in self._now))
            for sort in self.market.sorts
        ]
        for (index, column), number in sorted(remaining.items()):
            block = self.market.blocks[index]
            for _ in range(number):
                if empty[block.sort]:
                    found.append((empty[block.sort].popleft(), block, column))
        return found

    def _column_around(self, key: GpuKey, remaining: Mapping[tuple[int, Column], int]) -> tuple[int, Column] | None:
        """The tightest remaining column that holds what stays on the GPU."""
        room = self.packing.rooms[key]
        best: tuple[tuple[bool, int], tuple[int, Column]] | None = None
        for (index, column), number in sorted(remaining.items()):
            block = self.market.blocks[index]
            if number < 1 or block.sort != self.sort_of.get(key) or (block.pool is None) == room.used_whole:
                continue
            there = _counts(self._stay.get(key, ()), block)
            if there is None or any(a < b for a, b in zip(column, there, strict=True)):
                continue
            if block.pool is None and self._free(key, block, column) is None:
                continue
            # As it is cut now, with the slots that go, before it is cut anew.
            now = _counts(self._now.get(key, ()), block) or there
            rank = (any(a < b for a, b in zip(column, now, strict=True)), sum(column) - sum(there))
            if best is None or rank < best[0]:
                best = rank, (index, column)
        return best[1] if best else None

    def _free(self, key: GpuKey, block: Block, column: Column) -> tuple[Placement, ...] | None:
        """Placements of a column beside those that stay, cut as now where possible; None if they do not go together."""
        gpu, foreign = self.packing.rooms[key].gpu, self.market.sorts[block.sort].room.taken
        own = tuple(sorted(p for p in self.packing.rooms[key].taken if p not in foreign))
        now = {p for slot in self._now.get(key, ()) if (p := self.packing.placement(slot.device)) is not None}
        known = (block.first, column, own, tuple(sorted(now)))
        if known not in self._cut:
            wanted = {share[0]: n for share, n in zip(block.shares, column, strict=True) if n}
            others, compute = tuple(sorted(foreign)), gpu.compute_slices
            tries = [arrangement(wanted, gpu.placements, compute, others, frozenset({*own, *p})) for p in (now, ())]
            layout = next((found for found in tries if found is not None and set(own) <= set(found)), None)
            self._cut[known] = tuple(p for p in layout if p not in own) if layout is not None else None
        return self._cut[known]

    def _fill(self, key: GpuKey, block: Block, column: Column) -> None:
        if block.pool is None:
            for spot in sorted(self._free(key, block, column) or (), key=lambda p: (-p.size, p.start)):
                kind = block.first + next(i for i, s in enumerate(block.shares) if s[0] == spot.profile)
                self._offer(kind, Device(*key, spot.profile, spot.start))
            return
        there = _counts(self._stay.get(key, ()), block) or (0,) * len(column)
        for offset in reversed(range(len(column))):
            for _ in range(column[offset] - there[offset]):
                self._offer(block.first + offset, Device(*key))

    def _offer(self, kind: int, device: Device) -> None:
        """The first in the queue that may sit there takes the seat."""
        queue = self.queues.get(kind)
        for _ in range(min(_TRIES, len(queue or ()))):
            assert queue
            model = queue.popleft()
            if self._sit(model, kind, device):
                return
            queue.append(model)

    def _sit(self, model: int, kind: int, device: Device) -> bool:
        demands = self.market.demands
        if model >= len(demands):
            slot = self.bundles[model - len(demands)].slot(kind, device)
        else:
            slot = slot_of(demands[model].model, self.market.ways[model][kind][0], device, demands[model], 0)
        if not device.profile:
            slot = replace(slot, ordinal=next_ordinal(self.packing, slot.model, device))
        if not self.packing.fits(slot):
            return False
        self.packing.add(slot)
        return True

    def _place_others(self) -> bool:
        """Best fit for those without a seat, the largest first."""
        short: dict[int, list[Option]] = defaultdict(list)
        for kind, queue in sorted(self.queues.items()):
            if any(model >= len(self.market.demands) for model in queue):
                return False  # a bundle has no other size: the caller plans without turns
            for model in queue:
                short[model].append(self.market.ways[model][kind][0])
        self.repaired = bool(short)
        order = sorted(short, key=lambda m: (-sum(self._size(m, o) for o in short[m]), m))
        return all(self._place(model, short[model]) for model in order)

    def _size(self, model: int, option: Option) -> float:
        gpus = self.fleet.allowed[self.market.demands[model].model]
        return volume(option, next(g for g in gpus if g.product == option.product))

    def _place(self, model: int, options: list[Option]) -> bool:
        demand = self.market.demands[model]
        for option in options:
            slot = best_slot(self.packing, self.fleet, demand.model, option)
            if slot is not None:
                self.packing.add(slot)
        return covered(self.packing, self.fleet, self.market, model, self.held)


def _counts(slots: Sequence[Slot], block: Block) -> Column | None:
    """Slots of one GPU per kind of the block; None if one of them is of no such kind."""
    counts = dict.fromkeys(block.shares, 0)
    for slot in slots:
        share = block.shares[0] if block.pool == ALONE else (slot.device.profile or "", slot.compute_percent)
        if share not in counts:
            return None
        counts[share] += 1
    return tuple(counts.values())


def covered(packing: Packing, fleet: Fleet, market: Market, model: int, held: Mapping[ModelId, list[Held]]) -> bool:
    """Add replicas of any size by best fit until the model's rate is carried; False if there is no room for one more.

    GPUs in use come first, then the size that takes least, of those that carry all that is missing if any does.
    """
    if market.uniform:
        return _covered_alike(packing, fleet, market, model, held)
    demand = market.demands[model]
    known = {one.slot: one.option for one in held.get(demand.model, ())}
    options = sorted({o for ways in market.ways[model].values() for o in ways})
    while True:
        here = [Held(s, known.get(s) or _option_of(packing, s, options)) for s in packing.slots[demand.model]]
        here.sort(key=lambda h: -h.option.replica_per_s)
        missing = market.rates[model] - sum(h.option.replica_per_s for h in here)
        if missing <= market.rates[model] * (1 - COVERED):
            for one in superfluous(here, float(market.rates[model])):
                packing.remove(one.slot)
            return True
        slot = _one_more(packing, fleet, demand.model, options, float(missing))
        if slot is None:
            return False
        packing.add(slot)


_WAY = ("product", "mig", "percent", "batch", "instances", "memory_mib")


def same_way(a: Option, b: Option) -> bool:
    """Whether two options are the same kind of replica."""
    return all(getattr(a, name) == getattr(b, name) for name in _WAY)


def _covered_alike(
    packing: Packing, fleet: Fleet, market: Market, model: int, held: Mapping[ModelId, list[Held]]
) -> bool:
    """More of what is there; if that finds no room, or nothing is there, all of the option that takes least."""
    name = market.demands[model].model
    options = sorted({o for ways in market.ways[model].values() for o in ways})
    if packing.slots[name]:
        first = packing.slots[name][0]
        known = {one.slot: one.option for one in held.get(name, ())}
        if _grown(packing, fleet, market, model, known.get(first) or _option_of(packing, first, options)):
            return True
    example = {g.product: g for g in reversed(fleet.allowed[name])}
    usable = [o for o in options if o.product in example]
    usable.sort(key=lambda o: (_number(market, model, o) * volume(o, example[o.product]), o))
    for option in usable:
        mark = packing.mark()
        packing.remove_all(name)
        if _grown(packing, fleet, market, model, option):
            return True
        packing.back_to(mark)
    return False


def _number(market: Market, model: int, option: Option) -> int:
    return max(1, math.ceil(float(market.rates[model]) / option.replica_per_s - 1e-9))


def _grown(packing: Packing, fleet: Fleet, market: Market, model: int, option: Option) -> bool:
    name = market.demands[model].model
    while len(packing.slots[name]) < _number(market, model, option):
        slot = best_slot(packing, fleet, name, option)
        if slot is None:
            return False
        packing.add(slot)
    for slot in packing.slots[name][_number(market, model, option) :]:
        packing.remove(slot)
    return True


def carried_per_s(packing: Packing, market: Market, model: int) -> float:
    """What the model's replicas in the packing sustain together."""
    options = sorted({o for ways in market.ways[model].values() for o in ways})
    slots = packing.slots[market.demands[model].model]
    return float(sum(_option_of(packing, slot, options).replica_per_s for slot in slots))


def _one_more(packing: Packing, fleet: Fleet, model: ModelId, options: list[Option], missing: float) -> Slot | None:
    example = {g.product: g for g in reversed(fleet.allowed[model])}

    def waste(option: Option) -> tuple[object, ...]:
        takes = volume(option, example[option.product])
        return (option.replica_per_s < missing * COVERED, takes / min(option.replica_per_s, missing), takes, option)

    usable = sorted((o for o in options if o.product in example), key=waste)
    for closed in (True, False):
        for option in usable:
            slot = best_slot(packing, fleet, model, option, closed=closed)
            if slot is not None:
                return slot
    return None


def _option_of(packing: Packing, slot: Slot, options: list[Option]) -> Option:
    product = packing.rooms[key_of(slot.device)].gpu.product
    shape = (product, slot.device.profile or "", slot.compute_percent, slot.batch, slot.instances, slot.memory_mib)
    return next(o for o in options if (o.product, o.mig, o.percent, o.batch, o.instances, o.memory_mib) == shape)


def _queues(left: Ints) -> dict[int, deque[int]]:
    """Per kind who waits for such a slot. Replicas of one model are far apart: they fall on different GPUs."""
    found: dict[int, deque[int]] = {}
    for kind in np.flatnonzero(left.any(axis=0)):
        models = np.flatnonzero(left[:, kind])
        rounds = [(n, int(m)) for m in models for n in range(int(left[m, kind]))]
        found[int(kind)] = deque(model for _, model in sorted(rounds))
    return found
