"""The load a share may have, against a simulation of the queue it is derived from."""

import random

import pytest

from gpulet.planner.queueing import max_load, spare_batches_at


def late_fraction(load: float, capacity: int, spare: int, *, requests: int = 150_000) -> float:
    """Requests that take more than the running batch, ``spare`` further ones and their own, each of one time unit.

    One server that takes what waits as soon as it is free, at most a batch; Poisson arrivals (seeded). Every batch,
    full or not, takes as long as a full one.
    """
    chance = random.Random(7)
    now, arrivals = 0.0, []
    for _ in range(requests):
        now += chance.expovariate(load * capacity)
        arrivals.append(now)
    late, first, free = 0, 0, 0.0
    while first < requests:
        start = max(free, arrivals[first])
        last = first
        while last < requests and last - first < capacity and arrivals[last] <= start:
            last += 1
        free = start + 1.0
        late += sum(free - arrival > 2 + spare for arrival in arrivals[first:last])
        first = last
    return late / requests


@pytest.mark.parametrize(
    ("capacity", "spare"), [(1, 0), (1, 1), (1, 4), (1, 8), (4, 0), (8, 0), (8, 1), (16, 0), (32, 1)]
)
def test_at_the_largest_load_the_simulated_queue_keeps_the_promise(capacity: int, spare: int) -> None:
    assert late_fraction(max_load(capacity, spare, 0.99), capacity, spare) <= 0.01


@pytest.mark.parametrize(("capacity", "spare"), [(1, 1), (4, 0), (8, 0), (16, 0)])
def test_much_beyond_it_the_promise_is_broken(capacity: int, spare: int) -> None:
    assert late_fraction(min(0.97, max_load(capacity, spare, 0.99) * 1.6), capacity, spare) > 0.01


def test_larger_batches_more_patience_and_lower_percentiles_allow_more_load() -> None:
    assert max_load(1, 0, 0.99) < max_load(8, 0, 0.99) < max_load(32, 0, 0.99) <= 0.95
    assert max_load(8, 0, 0.99) < max_load(8, 1, 0.99)
    assert max_load(8, 0, 0.999) < max_load(8, 0, 0.99) < max_load(8, 0, 0.9)


def test_at_a_low_rate_nobody_waits_for_more_than_the_running_batch() -> None:
    assert spare_batches_at(0.04, 1, 0.99) == 0


def test_an_overloaded_share_has_no_answer() -> None:
    assert spare_batches_at(1.0, 8, 0.99) is None
