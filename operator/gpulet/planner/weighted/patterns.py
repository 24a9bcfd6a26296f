"""Ways to cover a model's rate: numbers of replicas per kind of slot, from which none can be dropped.

Family (a Dantzig-Wolfe decomposition per model): a small remainder of any kinds of one block, of a nominal weight up to
``CAPS`` GPUs, and one bulk kind in whatever number is still needed. Mixes of two bulk kinds beyond that are missing,
hence a bound over the family is called ``pattern``. All models at once, in numpy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gpulet.planner.weighted.market import Block, Bools, Floats, Ints, Market

CAPS = (1.3, 1.15, 1.0, 0.75, 0.5)
"""Weights of remainders, the largest first: 1.15 misses patterns that save a GPU in 650."""
_MAX_REMAINDERS = 420
_CHUNK_CELLS = 2_000_000
_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Patterns:
    """All patterns, stacked; those of one model are adjacent."""

    counts: Ints
    """Patterns x kinds."""
    first: Ints
    """Index of each model's first pattern, and the total number at the end."""

    @property
    def model(self) -> Ints:
        return np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))


@dataclass(frozen=True)
class _Family:
    """Remainders of one block."""

    block: int
    counts: Ints
    """Remainders x all kinds."""
    weight: Floats
    cap: float


def patterns_of(market: Market) -> Patterns:
    """In a uniform market a pattern is so many replicas of one kind: the family has all there are."""
    families = [_family(market, index, block, mixed=not market.uniform) for index, block in enumerate(market.blocks)]
    cells = max((len(f.counts) for f in families), default=1) * max(1, market.kinds)
    step = max(1, _CHUNK_CELLS // cells)
    models, counts = [], []
    for start in range(0, len(market.demands), step):
        chosen = np.arange(start, min(start + step, len(market.demands)))
        for found_models, found in _covers(market, families, chosen):
            models.append(found_models)
            counts.append(found)
    model = np.concatenate(models) if models else np.zeros(0, dtype=np.int64)
    order = np.argsort(model, kind="stable")
    first = np.searchsorted(model[order], np.arange(len(market.demands) + 1))
    stacked = np.concatenate(counts) if counts else np.zeros((0, market.kinds), dtype=np.int64)
    return Patterns(stacked[order], first)


def with_previous(patterns: Patterns, previous: Ints, covers: Bools) -> Patterns:
    """Each model's present replicas as its first pattern, where they still cover its rate."""
    keep = np.flatnonzero(covers)
    counts = np.insert(patterns.counts, patterns.first[keep], previous[keep], axis=0)
    added = np.concatenate([[0], np.cumsum(covers.astype(np.int64))])
    return Patterns(counts, patterns.first + added)


def _family(market: Market, index: int, block: Block, *, mixed: bool) -> _Family:
    cap = 0.0
    found: list[tuple[int, ...]] = [(0,) * len(block.shares)]
    for wider in CAPS if mixed else ():
        remainders = _remainders(tuple(block.weights), wider)
        if remainders is not None:
            cap, found = wider, remainders
            break
    counts = np.zeros((len(found), market.kinds), dtype=np.int64)
    counts[:, block.kinds] = found
    return _Family(index, counts, counts[:, block.kinds] @ block.weights, cap)


def _remainders(weights: tuple[float, ...], cap: float) -> list[tuple[int, ...]] | None:
    """All counts of a total weight up to ``cap``; None if they are too many."""
    found: list[tuple[int, ...]] = []

    def extend(left: float, counts: tuple[int, ...]) -> bool:
        index = len(counts)
        if index == len(weights):
            found.append(counts)
            return len(found) <= _MAX_REMAINDERS
        most = int((left + _TOLERANCE) / weights[index])
        return all(extend(left - n * weights[index], (*counts, n)) for n in range(most + 1))

    return found if extend(cap, ()) else None


def _covers(market: Market, families: list[_Family], models: Ints) -> Iterator[tuple[Ints, Ints]]:
    """Minimal covers of these models, each once: their models and counts."""
    home = np.concatenate([np.full(len(b.shares), i) for i, b in enumerate(market.blocks)] or [np.zeros(0, int)])
    for family in families:
        block = market.blocks[family.block]
        here = models[(market.per_s[np.ix_(models, np.arange(market.kinds)[block.kinds])] > 0).any(axis=1)]
        if not len(here):
            continue
        used = family.counts > 0
        missing = (market.per_s[here] <= 0).astype(np.int64)
        possible = (missing @ used.T.astype(np.int64)) == 0
        covered = market.per_s[here] @ family.counts.T
        least = _least(market.per_s[here], used)
        for bulk in range(market.kinds):
            able = np.flatnonzero(market.per_s[here, bulk] > 0)
            # Of the bulk's own kind a remainder has none: else the same pattern would come twice.
            allowed = ~used[:, bulk] & (used.any(axis=1) | (family.block == home[bulk]))
            if not len(able) or not allowed.any():
                continue
            bulk_per_s, rates = market.per_s[here[able], bulk][:, None], market.rates[here[able]][:, None]
            number = np.ceil((rates - covered[able]) / bulk_per_s - _TOLERANCE)
            slack = covered[able] + number * bulk_per_s - rates
            good = possible[able] & allowed & (number >= 1) & (slack < least[able] - _TOLERANCE * rates)
            good &= ~_seen_before(market, families, family, bulk, number, home)
            which, remainder = np.nonzero(good)
            counts = family.counts[remainder].copy()
            counts[:, bulk] += number[which, remainder].astype(np.int64)
            yield here[able[which]], counts


def _least(per_s: Floats, used: Bools) -> Floats:
    """Models x remainders: what the weakest replica of a remainder carries: more slack means that it can go."""
    least = np.full((len(per_s), len(used)), np.inf)
    for kind in range(per_s.shape[1]):
        least[:, used[:, kind]] = np.minimum(least[:, used[:, kind]], per_s[:, kind][:, None])
    return least


def _seen_before(
    market: Market, families: list[_Family], family: _Family, bulk: int, number: Floats, home: Ints
) -> Bools:
    """Models x remainders: whether an earlier kind of the remainder could be the bulk of the same pattern."""
    same = family.block == home[bulk]
    own = market.blocks[home[bulk]]
    bulk_weight = number * own.weights[bulk - own.first]
    result = np.zeros(number.shape, dtype=bool)
    block = market.blocks[family.block]
    kinds = (family.counts > 0).sum(axis=1)
    for kind in range(block.first, min(bulk, block.kinds.stop)):
        has = family.counts[:, kind] > 0
        if same:
            left = family.weight - family.counts[:, kind] * block.weights[kind - block.first]
            result |= has & (left + bulk_weight <= family.cap + _TOLERANCE)
        else:
            result |= has & (kinds == 1) & (bulk_weight <= families[home[bulk]].cap + _TOLERANCE)
    return result
