"""The rules of Triton's dynamic batcher, arrivals and routing, on cases worked out by hand."""

import numpy as np
import pytest

from gpulet.model.demand import ModelId
from gpulet.model.device import Device
from gpulet.model.plan import Slot
from gpulet.model.profile import Profile
from gpulet.sim.arrivals import bursty, poisson, recorded, split
from gpulet.sim.batcher import Batcher, serve
from gpulet.sim.service import ServiceTimes, of_slot
from gpulet.sim.turns import turns
from tests.planner.worlds import P, point

TEN = ServiceTimes.constant([10.0] * 8)


def served(times: list[float], batcher: Batcher) -> tuple[list[float], list[int]]:
    found = serve(np.array(times, dtype=float), batcher, TEN)
    return found.latency_ms.tolist(), found.batches.tolist()


def test_a_free_instance_takes_what_waits_at_most_a_batch() -> None:
    assert served([0, 1, 2, 3, 4, 5], Batcher(4)) == ([10, 19, 18, 17, 16, 25], [1, 4, 1])


def test_two_instances_share_one_queue() -> None:
    assert served([0, 1, 2, 3], Batcher(1, instances=2)) == ([10, 10, 18, 18], [1, 1, 1, 1])


def test_with_a_queue_delay_the_oldest_waits_for_company_no_longer_than_that() -> None:
    assert served([0, 1, 2, 50], Batcher(4, queue_delay_ms=5)) == ([15, 14, 13, 15], [3, 1])


def test_a_full_batch_does_not_wait() -> None:
    assert served([0, 1, 2, 3], Batcher(4, queue_delay_ms=50)) == ([13, 12, 11, 10], [4])


def test_preferred_sizes_go_first_and_leave_the_rest() -> None:
    """At 10 ms five wait: four go at once, the fifth with the next."""
    found = served([0, 1, 2, 3, 4, 5], Batcher(8, queue_delay_ms=1, preferred=(4,)))
    assert found[1] == [2, 4]  # the first two until the delay is over, then one preferred size
    assert served([0, 1, 2, 3, 4, 5], Batcher(8, preferred=(2, 4)))[1] == [1, 4, 1]


def test_when_the_delay_is_over_a_preferred_size_does_not_hold_back_what_waits() -> None:
    assert served([0, 1, 2, 3], Batcher(8, queue_delay_ms=3, preferred=(2, 8)))[1] == [2, 2]
    assert served([0, 6, 7, 8, 9], Batcher(8, queue_delay_ms=3, preferred=(5,)))[1] == [1, 4]


def test_the_fast_ways_agree_with_the_general_one() -> None:
    chance = np.random.default_rng(5)
    times, service = poisson(chance, 60, 4000), ServiceTimes((9.0, 11.0, 13.0), (0.2, 0.1, 0.3))
    normals = service.factors(chance, 4000)
    for batcher in (Batcher(1), Batcher(3), Batcher(3, instances=2)):
        general = Batcher(batcher.max_batch, batcher.instances, preferred=tuple(range(1, batcher.max_batch + 1)))
        one, other = serve(times, batcher, service, normals), serve(times, general, service, normals)
        assert np.allclose(one.latency_ms, other.latency_ms)
        assert one.busy_ms == pytest.approx(other.busy_ms)


def test_nothing_arrives_nothing_is_served() -> None:
    assert served([], Batcher(4)) == ([], [])


def test_bursts_keep_the_mean_rate_and_vary_more_than_poisson() -> None:
    times = bursty(np.random.default_rng(3), 200, 200_000, peak=3, peak_part=0.2, peak_ms=500)
    assert len(times) == 200_000
    assert 1000 * len(times) / times[-1] == pytest.approx(200, rel=0.03)
    counts = np.bincount((times // 500).astype(int))
    assert counts.var() / counts.mean() > 10  # 1 for Poisson


def test_bursts_that_take_more_than_all_are_refused() -> None:
    with pytest.raises(ValueError, match="peak 5"):
        bursty(np.random.default_rng(3), 200, 100, peak=5, peak_part=0.2)


def test_a_recorded_trace_can_be_stretched_to_a_rate() -> None:
    times = recorded([1000, 1010, 1040, 1100], per_s=10)
    assert times.tolist() == [0, 30, 120, 300]
    with pytest.raises(ValueError, match="at least two"):
        recorded([5.0])


def test_routing_by_chance_and_in_turn() -> None:
    times = np.arange(12_000, dtype=float)
    even = split(np.random.default_rng(1), times, [1, 1, 1])
    assert sum(map(len, even)) == 12_000
    assert all(len(s) == pytest.approx(4000, rel=0.06) for s in even)
    one, three = split(np.random.default_rng(1), times, [1, 3], in_turn=True)
    assert (len(one), len(three)) == (3000, 9000)
    assert set(np.diff(one)) == {4.0}


def test_a_share_serves_at_the_times_of_its_profile() -> None:
    profile = Profile(
        (point(40, batch=1, ms=10), point(40, batch=5, ms=30, p99_ms=36), point(80, batch=5, ms=15)), "resnet"
    )
    slot = Slot(ModelId("vision", "resnet"), Device("gpu-1", "GPU-0"), 50, 1000, 1, 5, 1)
    times = of_slot(profile, slot, P)
    assert times.mean_ms == pytest.approx((10, 15, 20, 25, 30))
    normals = np.random.default_rng(2).standard_normal(100_000)
    drawn = [times.time_ms(5, n) for n in normals]
    assert np.mean(drawn) == pytest.approx(30, rel=0.01)
    assert np.quantile(drawn, 0.99) / np.quantile(drawn, 0.5) == pytest.approx(1.2, rel=0.01)
    with pytest.raises(ValueError, match="measure one"):
        of_slot(profile, slot, "OTHER")


def test_a_turn_comes_once_a_cycle_and_takes_what_waits_at_most_a_batch() -> None:
    found = turns(np.array([1.0, 2.0, 3.0, 25.0]), cycle_ms=10, batch=2, service=ServiceTimes.constant([2.0, 4.0]))
    assert found.tolist() == [13.0, 12.0, 19.0, 7.0]
