"""What a GPU can be cut into: enumerated from the placements that the GPU itself offers, never from a constant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache

from gpulet.model.device import Placement

Layout = tuple[Placement, ...]
"""MIG placements that exist side by side, in order of their start."""


def collide(a: Placement, b: Placement) -> bool:
    """Whether two placements use a common memory slice."""
    return a.start < b.start + b.size and b.start < a.start + a.size


def fits_beside(placement: Placement, taken: Iterable[Placement], compute_slices: int) -> bool:
    """Whether the placement can exist beside those that are taken."""
    others = tuple(taken)
    compute = sum(other.compute_slices for other in others)
    return compute + placement.compute_slices <= compute_slices and not any(collide(placement, o) for o in others)


@lru_cache(maxsize=1024)
def layouts(placements: tuple[Placement, ...], compute_slices: int, taken: Layout = ()) -> tuple[Layout, ...]:
    """All sets of placements to which none can be added, beside those already ``taken`` (which are not listed)."""
    options = tuple(sorted(set(placements)))
    found: set[Layout] = set()

    def extend(current: Layout, first: int) -> None:
        extendable = False
        # Maximality is tested over all options, the recursion goes only forward: no set twice, and all maximal.
        for index, option in enumerate(options):
            if option not in current and fits_beside(option, (*taken, *current), compute_slices):
                extendable = True
                if index >= first:
                    extend((*current, option), index + 1)
        if not extendable and current:
            found.add(tuple(sorted(current, key=lambda p: (p.start, p.profile))))

    extend((), 0)
    return tuple(sorted(found))


def counts(layout: Layout) -> tuple[tuple[str, int], ...]:
    """How many placements of each profile a layout has."""
    return tuple(sorted(Counter(placement.profile for placement in layout).items()))


def without_dominated(columns: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """The vectors of which no other is at least as large in every component."""
    distinct = sorted(set(columns))
    return tuple(
        c for c in distinct if not any(o != c and all(x >= y for x, y in zip(o, c, strict=True)) for o in distinct)
    )


@lru_cache(maxsize=1024)
def columns(
    placements: tuple[Placement, ...], compute_slices: int, profiles: tuple[str, ...], taken: Layout = ()
) -> tuple[tuple[int, ...], ...]:
    """Undominated counts per profile, in the order of ``profiles``, over all layouts of these profiles."""
    offered = tuple(p for p in placements if p.profile in profiles)
    found = [dict(counts(layout)) for layout in layouts(offered, compute_slices, taken)]
    return without_dominated([tuple(c.get(profile, 0) for profile in profiles) for c in found])


def arrangement(
    wanted: dict[str, int],
    placements: tuple[Placement, ...],
    compute_slices: int,
    taken: Layout,
    preferred: frozenset[Placement] = frozenset(),
) -> Layout | None:
    """Concrete placements for counts per profile, with as many preferred ones as possible; None if there are none.

    A possible set of counts is not a placement: starts are always taken from one enumerated layout.
    """
    offered = tuple(p for p in placements if wanted.get(p.profile, 0))
    best: tuple[int, Layout] | None = None
    for layout in layouts(offered, compute_slices, taken):
        chosen: list[Placement] = []
        for profile, number in sorted(wanted.items()):
            of_profile = sorted(
                (p for p in layout if p.profile == profile), key=lambda p: (p not in preferred, p.start)
            )
            chosen += of_profile[:number]
        if len(chosen) < sum(wanted.values()):
            continue
        kept = sum(placement in preferred for placement in chosen)
        if best is None or kept > best[0]:
            best = kept, tuple(sorted(chosen))
    return best[1] if best else None
