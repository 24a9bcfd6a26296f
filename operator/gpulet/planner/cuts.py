"""What integrality of packing implies, as linear inequalities (dual feasible functions).

If items of sizes s with sum <= C share one bin, then sum f(s) <= 1 for each function below; summed over bins, it bounds
the number of bins. They replace the enumeration of all multisets of shares, which is long for fine grids (627 at 5 %).
Functions: Fekete and Schepers, "New classes of fast lower bounds for bin packing problems" (2001).
"""

from __future__ import annotations

from collections.abc import Iterable

_FRACTIONS = (1, 2, 3, 4, 5)
_THRESHOLDS = 6


def inequalities(sizes: Iterable[int], capacity: int) -> tuple[dict[int, float], ...]:
    """Functions size -> weight with sum of weights <= 1 in every bin; the plain volume is the first."""
    distinct = sorted({s for s in sizes if s > 0})
    if not distinct or capacity <= 0:
        return ()
    found = [{s: s / capacity for s in distinct}]
    found += [{s: _fraction(s, capacity, k) for s in distinct} for k in _FRACTIONS]
    small = [s for s in distinct if 2 * s <= capacity]
    found += [{s: _threshold(s, capacity, t) for s in distinct} for t in small[-_THRESHOLDS:]]
    unique: list[dict[int, float]] = []
    for weights in found:
        if weights not in unique:
            unique.append(weights)
    return tuple(unique)


def _fraction(size: int, capacity: int, k: int) -> float:
    """Rounds to multiples of 1/k; sizes that are multiples of 1/(k+1) stay."""
    if (k + 1) * size % capacity == 0:
        return size / capacity
    return ((k + 1) * size // capacity) / k


def _threshold(size: int, capacity: int, threshold: int) -> float:
    """A large item leaves no room for those of at least ``threshold``; smaller ones are free."""
    if size > capacity - threshold:
        return 1.0
    return 0.0 if size < threshold else size / capacity
