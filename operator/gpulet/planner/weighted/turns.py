"""What a small model takes of a slot that it shares by duty cycle (Nexus' squishy bin packing on a grid of cycles).

In a cycle of D ms every model of the slot runs one batch. A model of rate r needs a batch that takes r D requests
(under the rule ``backlog``: as many as arrive in a cycle with the objective's probability), of latency L <= D with
D + L within its objective: a request that just missed its turn waits a whole cycle. It then takes L / D of the slot.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gpulet.model.demand import Demand
from gpulet.model.plan import LatencyRule
from gpulet.planner.queueing import turn_load
from gpulet.planner.throughput import PARVAGPU_PART, Option
from gpulet.planner.weighted.catalogue import Catalogue
from gpulet.planner.weighted.market import ALONE, Floats, Ints, Market

CYCLES_MS: Floats = np.array([2.0 ** (i / 2) for i in range(2, 24)])
"""Powers of the square root of two, 2 ms to 2.9 s: few enough that models of one cycle meet."""


@dataclass(frozen=True)
class Batches:
    """Batches of one model's kind of slot, ascending."""

    options: tuple[Option, ...]
    """Per batch the fastest that takes at least as much."""
    takes: Floats
    """Requests that each may be planned for in one cycle."""
    ms: Floats
    """Latency of each."""

    def at_least(self, requests: Floats) -> Ints:
        """Index of the batch that takes so many requests; the number of batches where none does."""
        return np.searchsorted(self.takes, requests * (1 - 1e-9))


class Turns:
    """Parts of slots that all models would take."""

    def __init__(self, market: Market, catalogue: Catalogue, rule: LatencyRule) -> None:
        self.market = market
        self.catalogue = catalogue
        self.rule = rule
        self.device_mib, self.clients = _devices(market)
        """Per kind: memory and MPS clients of its device."""
        self.memory_mib: Ints = np.zeros(len(market.demands), dtype=np.int64)
        """Per model: the most that any of its batches needs."""
        self._batches: dict[tuple[object, ...], Mapping[int, Batches]] = {}
        self.part = self._parts()
        """Models x kinds x cycles: part of the slot; infinite where the model cannot take turns."""

    def budget_ms(self, demand: Demand) -> float:
        return demand.latency_ms / predicted_in_turn_ms(1.0, 0.0, self.rule)

    def batches(self, model: int) -> Mapping[int, Batches]:
        """Kind -> batches of a model there; empty if it shares with nobody."""
        demand = self.market.demands[model]
        key = (self.catalogue.class_of(demand), id(self.market.ways[model]))
        if key not in self._batches:
            self._batches[key] = {} if demand.isolation == "None" else self._read(demand, model)
        return self._batches[key]

    def _read(self, demand: Demand, model: int) -> Mapping[int, Batches]:
        single = self.catalogue.batches(demand)
        found = {}
        for block in self.market.blocks:
            product = self.market.sorts[block.sort].room.gpu.product
            for offset, (mig, percent) in enumerate(block.shares):
                options = single.get((product, mig, percent), ())
                kind = block.first + offset
                fits = [o for o in options if o.memory_mib <= self.device_mib[kind]]
                if kind in self.market.ways[model] and block.pool != ALONE and fits:
                    found[kind] = self._fastest(tuple(fits), demand)
        return found

    def _fastest(self, options: tuple[Option, ...], demand: Demand) -> Batches:
        best: list[Option] = []
        for option in reversed(options):
            best.append(option if not best or option.p99_ms <= best[-1].p99_ms else best[-1])
        best.reverse()
        takes = [o.batch * _fill(demand, o.batch, self.rule) for o in options]
        return Batches(tuple(best), np.maximum.accumulate(np.array(takes)), np.array([o.p99_ms for o in best]))

    def _parts(self) -> Floats:
        market = self.market
        part = np.full((len(market.demands), market.kinds, len(CYCLES_MS)), np.inf)
        groups: dict[int, tuple[Mapping[int, Batches], list[int]]] = {}
        for model in range(len(market.demands)):
            kinds = self.batches(model)
            groups.setdefault(id(kinds), (kinds, []))[1].append(model)
        for kinds, members in groups.values():
            models = np.array(members)
            self.memory_mib[models] = max((o.memory_mib for b in kinds.values() for o in b.options), default=0)
            budget = np.array([self.budget_ms(market.demands[m]) for m in members])[:, None]
            requests = market.rates[models][:, None] * CYCLES_MS[None, :] / 1000
            for kind, batches in kinds.items():
                index = batches.at_least(requests)
                ms = np.append(batches.ms, np.inf)[index]
                fits = (self.memory_mib[models] <= self.device_mib[kind])[:, None]
                fits = fits & (ms <= CYCLES_MS) & (CYCLES_MS + ms <= budget * (1 + 1e-12))
                part[models, kind] = np.where(fits, ms / CYCLES_MS, np.inf)
        return part

    def option(self, model: int, kind: int, cycle: int) -> Option:
        """The batch that a model runs in each such cycle."""
        batches = self.batches(model)[kind]
        requests = self.market.rates[model] * CYCLES_MS[cycle] / 1000
        return batches.options[int(batches.at_least(np.array([requests]))[0])]


def sustained_per_s(demand: Demand, batch: int, cycle_ms: float, rule: LatencyRule) -> float:
    """Rate at which one such batch a cycle keeps the rule."""
    return batch * _fill(demand, batch, rule) / cycle_ms * 1000


def _fill(demand: Demand, batch: int, rule: LatencyRule) -> float:
    """The part of a batch that the mean arrivals of a cycle may fill."""
    return turn_load(batch, demand.percentile / 100) if rule == "backlog" else 1.0


def predicted_in_turn_ms(cycle_ms: float, busy_ms: float, rule: LatencyRule) -> float:
    """A whole cycle until one's turn, then one's own batch, as the rule counts it."""
    return (cycle_ms + busy_ms) / (PARVAGPU_PART if rule == "parvagpu" else 1.0)


def microseconds(ms: float) -> int:
    return math.ceil(ms * 1000 - 1e-6)


def _devices(market: Market) -> tuple[Ints, Ints]:
    memory, clients = np.zeros(market.kinds, dtype=np.int64), np.zeros(market.kinds, dtype=np.int64)
    for block in market.blocks:
        gpu = market.sorts[block.sort].room.gpu
        for offset, (profile, _) in enumerate(block.shares):
            held = [p for p in gpu.placements if p.profile == profile] if profile else [gpu]
            memory[block.first + offset] = min(h.memory_mib for h in held)
            clients[block.first + offset] = min(h.clients for h in held)
    return memory, clients
