"""Bin packing: bounds, the classic counter-examples, and the reference instance of the planner's notes."""

import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.baselines.packing import (
    best_fit,
    bins_bound,
    decreasing,
    fillings,
    first_fit,
    first_fit_decreasing_replicas,
    volume,
)

ITEMS = st.lists(st.integers(1, 100), min_size=1, max_size=40)

# The cuts of an A100 (1g, 2g, 3g, 4g, 7g), and of a GPU shared by MPS at 20, 40, 50, 60, 80, 100 %.
MIG_COLUMNS = "00001 00110 00200 02100 11010 13000 21100 30010 32000 40100 51000 70000"
MPS_COLUMNS = "000001 002000 010100 011000 100010 120000 200100 201000 310000 500000"


def reference(number: int, sizes: tuple[float, ...]) -> tuple[list[list[float]], list[float]]:
    """The deterministic instance of the planner's notes, section 8.1."""
    throughputs, rates = [], []
    for i in range(number):
        exponent, base = 0.60 + 0.05 * (i % 9), 50 + 37 * (i % 13)
        row = [base * size**exponent for size in sizes]
        if i % 5 == 0:
            row[0] = 0.0
        throughputs.append(row)
        rates.append(base * (0.5 + ((7 * i) % 23) / 4))
    return throughputs, rates


@pytest.mark.parametrize(
    ("number", "mig", "mps"),
    [(10, 6, 8), (50, 27, 38), (200, 111, 155)],
)
def test_first_fit_decreasing_on_the_reference_instance(number: int, mig: int, mps: int) -> None:
    for columns, sizes, total, gpus in (
        (MIG_COLUMNS, (1, 2, 3, 4, 7), 7, mig),
        (MPS_COLUMNS, (1, 2, 2.5, 3, 4, 5), 5, mps),
    ):
        cuts = [[int(digit) for digit in word] for word in columns.split()]
        found = first_fit_decreasing_replicas(*reference(number, sizes), [s / total for s in sizes], cuts)
        assert found == gpus


def test_best_fit_looks_for_the_fullest_and_first_fit_for_the_first() -> None:
    items = [50, 60, 40, 50]
    assert best_fit(items, 100) == [[50, 50], [60, 40]]
    assert first_fit(items, 100) == [[50, 40], [60], [50]]


def test_the_bound_sees_what_volume_does_not() -> None:
    assert volume([60] * 4, 100) == 2.4
    assert bins_bound([60] * 4, 100) == pytest.approx(4)
    # Two of 40 and one of 20 fill a bin only together: the integer bound is above the linear one.
    assert bins_bound([40] * 3, 100) == pytest.approx(1.5)
    assert bins_bound([40] * 3, 100, whole=True) == 2


def test_every_filling_is_full() -> None:
    have = {20: 3, 30: 2, 70: 1}
    found = list(fillings(have, 100))
    assert len(found) == len(set(found))
    for counts in found:
        left = 100 - sum(s * n for s, n in zip(sorted(have), counts, strict=True))
        assert left >= 0
        assert all(s > left or n == have[s] for s, n in zip(sorted(have), counts, strict=True))


@settings(deadline=None)
@given(ITEMS)
def test_every_packing_holds_all_items_and_is_at_least_the_bound(items: list[int]) -> None:
    for bins in (first_fit(items, 100), best_fit(items, 100), best_fit(decreasing(items), 100)):
        assert Counter(item for one in bins for item in one) == Counter(items)
        assert all(sum(one) <= 100 for one in bins)
        assert len(bins) >= math.ceil(volume(items, 100))


@settings(deadline=None)
@given(st.lists(st.sampled_from([110, 230, 320, 470, 650, 810]), min_size=1, max_size=60))
def test_the_bounds_are_in_order(items: list[int]) -> None:
    linear, whole = bins_bound(items, 1000), bins_bound(items, 1000, whole=True)
    assert volume(items, 1000) <= linear + 1e-6
    assert linear <= whole + 1e-6
    assert whole <= len(best_fit(decreasing(items), 1000))


def test_an_item_that_fits_no_bin_is_named() -> None:
    with pytest.raises(ValueError, match="item 101: sizes are from 1 to 100"):
        best_fit([101], 100)
