"""How shares in percent fill one device."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

MAX_MULTISETS = 200
"""More are not enumerated: they are found as they are needed (``best_multiset``)."""


@lru_cache(maxsize=256)
def multisets(percents: tuple[int, ...], capacity: int) -> tuple[tuple[int, ...], ...] | None:
    """All counts per percent that fit and to which nothing can be added; None if there are too many.

    ``percents`` ascending and distinct.
    """
    found: list[tuple[int, ...]] = []

    def extend(index: int, left: int, counts: tuple[int, ...]) -> bool:
        if index < 0:
            if left < percents[0]:
                found.append(counts)
            return len(found) <= MAX_MULTISETS
        size = percents[index]
        return all(extend(index - 1, left - n * size, (n, *counts)) for n in range(left // size, -1, -1))

    if not percents or percents[0] > capacity:
        return ()
    if not extend(len(percents) - 1, capacity, ()):
        return None
    # A smaller share in the place of a larger one is not better by itself: only exact dominance goes.
    return tuple(sorted(c for c in found if not any(_beats(other, c) for other in found)))


def _beats(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return a != b and all(x >= y for x, y in zip(a, b, strict=True))


def best_multiset(percents: Sequence[int], capacity: int, values: NDArray[np.float64]) -> tuple[float, tuple[int, ...]]:
    """The counts of highest value that fit one device: an unbounded knapsack over whole percents."""
    best = np.zeros(capacity + 1)
    last = np.full(capacity + 1, -1)
    for room in range(1, capacity + 1):
        best[room], last[room] = best[room - 1], -2
        for kind, size in enumerate(percents):
            if size <= room and best[room - size] + values[kind] > best[room] + 1e-15:
                best[room], last[room] = best[room - size] + values[kind], kind
    counts = [0] * len(percents)
    room = capacity
    while room > 0:
        if last[room] == -2:
            room -= 1
        elif last[room] < 0:
            break
        else:
            counts[last[room]] += 1
            room -= percents[last[room]]
    return float(best[capacity]), tuple(counts)


def packed(percents: Sequence[int], capacity: int, wanted: Sequence[int]) -> list[tuple[int, ...]]:
    """Columns of a best-fit-decreasing packing of the wanted counts: there is always a layout made of them."""
    bins: list[tuple[int, list[int]]] = []
    for kind in sorted(range(len(percents)), key=lambda k: -percents[k]):
        for _ in range(int(wanted[kind])):
            fitting = [i for i, (left, _) in enumerate(bins) if left >= percents[kind]]
            if fitting:
                index = min(fitting, key=lambda i: bins[i][0])
            else:
                bins.append((capacity, [0] * len(percents)))
                index = len(bins) - 1
            left, counts = bins[index]
            counts[kind] += 1
            bins[index] = (left - percents[kind], counts)
            # A full bin takes no more: it leaves the search.
    return [tuple(counts) for _, counts in bins]
