"""Small models that take turns, put together: bins of classes (kind of slot, cycle)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpulet.model.device import Device
from gpulet.model.plan import Slot, Turn
from gpulet.planner.weighted.market import Floats, Ints, Market
from gpulet.planner.weighted.turns import CYCLES_MS, Turns, microseconds

MOST_TURNS = 8
"""Models in one gpulet: each holds memory and a client all the time."""
_EXCESS = (1.0, 1.1, 1.25, 1.5, 2.0)
"""How much more of a bin than in its best class a model may take before a new bin is opened: the best is kept."""
_FULL = 1 + 1e-9


@dataclass(frozen=True)
class Turners:
    """Models that share one gpulet, and how on each kind of slot."""

    turns: Turns
    models: tuple[int, ...]
    cycles: Mapping[int, int]
    """Kind -> the cycle that takes least there."""

    def slot(self, kind: int, device: Device) -> Slot:
        cycle, market = self.cycles[kind], self.turns.market
        options = [self.turns.option(m, kind, cycle) for m in self.models]
        demands = [market.demands[m] for m in self.models]
        taken = tuple(
            Turn(d.model, o.batch, microseconds(o.p99_ms), d.artifact) for d, o in zip(demands, options, strict=True)
        )
        return Slot(
            model=taken[0].model,
            device=device,
            compute_percent=options[0].percent,
            memory_mib=sum(o.memory_mib for o in options),
            clients=len(options),
            batch=taken[0].batch,
            instances=1,
            artifact=taken[0].artifact,
            turns=taken,
            cycle_us=microseconds(float(CYCLES_MS[cycle])),
        )


class _Bins:
    """Open bins, as arrays with room for one bin a model."""

    def __init__(self, number: int) -> None:
        self.used = 0
        self.kind: Ints = np.zeros(number, dtype=np.int64)
        self.cycle: Ints = np.zeros(number, dtype=np.int64)
        self.group: Ints = np.zeros(number, dtype=np.int64)
        self.size: Ints = np.zeros(number, dtype=np.int64)
        self.memory_mib: Ints = np.zeros(number, dtype=np.int64)
        self.load: Floats = np.zeros(number)
        self.members: list[list[int]] = []

    def open(self, kind: int, cycle: int, group: int) -> int:
        index = self.used
        self.kind[index], self.cycle[index], self.group[index] = kind, cycle, group
        self.members.append([])
        self.used += 1
        return index

    def add(self, index: int, model: int, part: float, memory_mib: int) -> None:
        self.load[index] += part
        self.size[index] += 1
        self.memory_mib[index] += memory_mib
        self.members[index].append(model)

    def cost(self, prices: Floats) -> float:
        return float(prices[self.kind[: self.used]].sum())


def bundled(turns: Turns, models: Sequence[int], prices: Floats) -> list[Turners]:
    """Bins of all these models, each of one namespace and isolation; the cheapest of some packings."""
    groups: dict[tuple[str, str], int] = {}
    demands = turns.market.demands
    group = {m: groups.setdefault((demands[m].model.namespace, demands[m].isolation), len(groups)) for m in models}
    packings = [_packed(turns, models, group, prices, excess) for excess in _EXCESS] if models else []
    if not packings:
        return []
    best = min(packings, key=lambda bins: bins.cost(prices))
    return [_turners(turns, tuple(sorted(members))) for members in best.members if members]


def _packed(turns: Turns, models: Sequence[int], group: Mapping[int, int], prices: Floats, excess: float) -> _Bins:
    """First the largest; each to the bin where it takes least, if that is not much more than in its best class."""
    priced = turns.part[list(models)] * prices[None, :, None]
    flat = priced.reshape(len(models), -1)
    best = flat.argmin(axis=1)
    least = flat[np.arange(len(models)), best]
    bins = _Bins(len(models))
    for position in np.lexsort((np.array(models), -least)):
        model = models[int(position)]
        home = _home(turns, bins, model, group[model], prices, float(least[position]) * excess)
        if home is None:
            kind, cycle = np.unravel_index(best[position], priced.shape[1:])
            home = bins.open(int(kind), int(cycle), group[model])
        part = float(turns.part[model, bins.kind[home], bins.cycle[home]])
        bins.add(home, model, part, int(turns.memory_mib[model]))
    return bins


def _home(turns: Turns, bins: _Bins, model: int, group: int, prices: Floats, most: float) -> int | None:
    """The fullest of the bins where the model takes least: small remainders stay together."""
    kind, load = bins.kind[: bins.used], bins.load[: bins.used]
    part = turns.part[model, kind, bins.cycle[: bins.used]]
    cost = part * prices[kind]
    fits = (part + load <= _FULL) & (cost <= most * _FULL) & (bins.group[: bins.used] == group)
    fits &= bins.size[: bins.used] < np.minimum(MOST_TURNS, turns.clients[kind])
    fits &= bins.memory_mib[: bins.used] + turns.memory_mib[model] <= turns.device_mib[kind]
    if not fits.any():
        return None
    return int(np.where(fits, cost - 1e-6 * load, np.inf).argmin())


def _turners(turns: Turns, models: tuple[int, ...]) -> Turners:
    total = turns.part[list(models)].sum(axis=0)
    cycles = {}
    for kind in range(turns.market.kinds):
        cycle = int(total[kind].argmin())
        memory_mib = int(turns.memory_mib[list(models)].sum())
        holds = memory_mib <= turns.device_mib[kind] and len(models) <= turns.clients[kind]
        if total[kind, cycle] <= _FULL and holds:
            cycles[kind] = cycle
    return Turners(turns, models, cycles)


def volume_patterns(turns: Turns) -> tuple[Ints, Floats]:
    """Models and counts: a fraction of one slot for every kind on which a model could take turns."""
    least = turns.part.min(axis=2)
    model, kind = np.nonzero(np.isfinite(least))
    counts = np.zeros((len(model), turns.market.kinds))
    counts[np.arange(len(model)), kind] = least[model, kind]
    return model, counts


def kinds_of(market: Market, bundle: Turners) -> Ints:
    """One pattern (a single slot) per kind that holds the bundle."""
    found = np.zeros((len(bundle.cycles), market.kinds), dtype=np.int64)
    for row, kind in enumerate(bundle.cycles):
        found[row, kind] = 1
    return found
