"""MIG layouts, enumerated from the placements a GPU offers."""

from gpulet.model.device import Placement
from gpulet.planner.layouts import arrangement, columns, counts, fits_beside, layouts
from tests.planner.worlds import CUT

PROFILES = ("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")


def grid(table: dict[str, tuple[int, int, tuple[int, ...]]]) -> tuple[Placement, ...]:
    return tuple(Placement(n, s, size, compute, 1, 1) for n, (size, compute, starts) in table.items() for s in starts)


def test_a100_has_19_layouts_14_multisets_and_12_columns() -> None:
    found = layouts(CUT, 7)
    assert len(found) == 19
    assert len({counts(layout) for layout in found}) == 14
    wanted = "00001 00110 00200 02100 11010 13000 21100 30010 32000 40100 51000 70000"
    assert {"".join(map(str, column)) for column in columns(CUT, 7, PROFILES)} == set(wanted.split())


def test_double_memory_slices_make_78_38_and_28() -> None:
    double = tuple(Placement("1g.20gb", start, 2, 1, 19968, 6) for start in (0, 2, 4, 6))
    found = layouts(CUT + double, 7)
    assert len(found) == 78
    assert len({counts(layout) for layout in found}) == 38
    assert len(columns(CUT + double, 7, (*PROFILES, "1g.20gb"))) == 28


def test_a30_has_5_4_and_4() -> None:
    a30 = grid({"1g": (1, 1, (0, 1, 2, 3)), "2g": (2, 2, (0, 2)), "4g": (4, 4, (0,))})
    assert len(layouts(a30, 4)) == 5
    assert len(columns(a30, 4, ("1g", "2g", "4g"))) == 4


def test_placements_that_are_taken_leave_the_rest() -> None:
    taken = next(p for p in CUT if (p.profile, p.start) == ("3g.40gb", 4))
    assert columns(CUT, 7, ("3g.40gb", "4g.40gb"), (taken,)) == ((0, 1), (1, 0))


def test_counts_become_starts_that_do_not_overlap_and_keep_what_exists() -> None:
    """E1: starts come from an enumerated layout, never from counts alone."""
    kept = next(p for p in CUT if (p.profile, p.start) == ("2g.20gb", 4))
    chosen = arrangement({"2g.20gb": 2, "1g.10gb": 3}, CUT, 7, (), frozenset({kept}))
    assert chosen is not None
    assert kept in chosen
    assert all(fits_beside(p, [o for o in chosen if o != p], 7) for p in chosen)
    assert arrangement({"3g.40gb": 2, "1g.10gb": 1}, CUT, 7, ()) is None
