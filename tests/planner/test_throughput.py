"""From profile to options: latency rule, monotone surface, modes."""

from dataclasses import replace

import pytest

from gpulet.model.demand import Demand
from gpulet.model.plan import PlannerPolicy
from gpulet.planner.throughput import option_of, options_of, predicted_ms, surface
from tests.planner.worlds import demand, point

POLICY = PlannerPolicy()
PLAIN = PlannerPolicy(interference_margin=0.0)


def test_a_model_of_five_requests_a_second_never_waits_for_a_batch_of_eight() -> None:
    wish = demand("quiet", point(20, ms=8), point(20, batch=8, ms=30, memory_mib=1500), rate=5, ms=60)
    best = min(options_of(wish, POLICY))
    assert best.batch == 1
    # At 4 % load a request may meet a running batch, and waits for that alone.
    assert 1.5 * 8 * 1.1 < predicted_ms(best, wish, "backlog", replicas=1) < 2 * 8 * 1.1


def test_a_larger_share_counts_at_least_as_good_as_a_smaller_one() -> None:
    """Published profiles get slower with more compute in one of ten neighbouring pairs: noise, not truth."""
    noisy = (point(20, ms=10), point(40, ms=12), point(80, ms=5))
    assert [p.mean_us for p in surface(noisy)] == [10_000, 10_000, 5_000]


def test_points_of_other_placements_do_not_mix() -> None:
    points = (point(100, ms=5, mig="1g.10gb"), point(100, ms=9, mig="3g.40gb"), point(50, ms=20))
    assert sorted(p.mean_us for p in surface(points)) == [5_000, 9_000, 20_000]


def test_neighbours_cost_the_margin_and_solitude_does_not() -> None:
    def latency(wish: Demand, index: int = 0) -> float:
        option = option_of(wish, wish.profile.points[index], POLICY)
        assert option is not None
        return option.p99_ms

    shared = demand("m", point(50, ms=10), point(100, ms=10), point(100, ms=10, mig="2g.20gb"))
    assert latency(shared) == pytest.approx(11)
    assert latency(shared, 1) == pytest.approx(10)  # all of a GPU has no neighbour
    assert latency(shared, 2) == pytest.approx(10)  # nor has a MIG instance
    assert latency(demand("m", point(50, ms=10), isolation="None")) == pytest.approx(10)


def test_objective_is_met_at_the_exact_boundary_and_missed_below() -> None:
    half = replace(PLAIN, latency_rule="half")
    assert options_of(demand("m", point(50, ms=10), ms=20.0), half)
    assert not options_of(demand("m", point(50, ms=10), ms=19.99), half)


def test_an_objective_below_a_batch_of_one_cannot_be_met_at_any_load() -> None:
    assert not options_of(demand("m", point(50, ms=10), ms=9.9), PLAIN)
    assert options_of(demand("m", point(50, ms=10), ms=15.5), PLAIN)


def test_the_nearer_the_objective_the_less_a_replica_may_be_loaded() -> None:
    loads = [
        option.replica_per_s / option.full_per_s
        for ms in (15.5, 20, 30, 60)
        for option in options_of(demand("m", point(50, ms=10), ms=ms), PLAIN)
    ]
    assert loads == sorted(loads)
    assert loads[0] < 0.05
    assert loads[-1] > 0.5


def test_the_percentile_of_a_batch_counts_not_its_mean() -> None:
    assert not options_of(demand("m", point(50, ms=10, p99_ms=30), ms=29), PLAIN)
    assert options_of(demand("m", point(50, ms=10, p99_ms=30), ms=40), PLAIN)


def at_batch(batch: int, policy: PlannerPolicy, *, ms: float, fixed_batch: int | None = None) -> float:
    """Requests/s of one replica that takes 8 ms and 1 ms a request."""
    points = tuple(point(50, batch=b, ms=8 + b) for b in (1, 2, 4, 8, 16, 32))
    option = option_of(
        demand("m", *points, ms=ms, fixed_batch=fixed_batch), point(50, batch=batch, ms=8 + batch), policy
    )
    return option.replica_per_s if option else 0.0


def test_a_large_batch_serves_a_tight_objective_if_small_ones_are_faster() -> None:
    """32 requests take 40 of 50 ms, but no batch gets that large at a rate at which the objective holds."""
    half = replace(PLAIN, latency_rule="half")
    assert at_batch(32, half, ms=50) == 0
    assert at_batch(32, PLAIN, ms=50) > 0.8 * at_batch(16, half, ms=50)  # which ignores queueing


def test_a_batch_padded_to_its_full_size_takes_its_full_time() -> None:
    """A tuned artifact has a static batch: small ones are not faster."""
    assert at_batch(32, PLAIN, ms=70, fixed_batch=32) < at_batch(32, PLAIN, ms=70)


def test_rule_duty_waits_for_a_batch_to_fill() -> None:
    """Nexus and gpu-lets: L + d <= objective, d = max(b / rate, L); at too low a rate a batch of one."""
    duty = replace(PLAIN, latency_rule="duty")
    points = (point(50, batch=1, ms=5), point(50, batch=8, ms=20))

    def batches(rate: float, ms: float) -> set[int]:
        return {o.batch for p in points if (o := option_of(demand("m", *points, rate=rate, ms=ms), p, duty))}

    assert batches(100, 100) == {1, 8}  # 8 requests take 80 ms to come, then 20
    assert batches(100, 99) == {1}
    assert batches(390, 41) == {1, 8}
    assert batches(390, 39) == {1}


def test_rule_half_is_that_of_the_papers() -> None:
    policy = PlannerPolicy(interference_margin=0.0, latency_rule="half")
    (option,) = options_of(demand("m", point(50, batch=8, ms=10), rate=800, ms=20), policy)
    assert option.replica_per_s == pytest.approx(800)
    assert option.replicas == 1


@pytest.mark.parametrize(
    ("mode", "kinds"),
    [
        ("Auto", {"", "2g.20gb"}),
        ("MPS", {""}),
        ("MIG", {"2g.20gb"}),
        ("Exclusive", {""}),
    ],
)
def test_modes(mode: str, kinds: set[str]) -> None:
    wish = demand("m", point(50), point(100, ms=5), point(100, ms=20, mig="2g.20gb"), mode=mode)
    options = options_of(wish, POLICY)
    assert {o.mig for o in options} == kinds
    if mode == "Exclusive":
        assert {o.percent for o in options} == {100}


def test_a_tuned_artifact_runs_at_its_own_batch_alone() -> None:
    wish = demand("m", point(50), point(50, batch=4, ms=15), fixed_batch=4)
    assert {o.batch for o in options_of(wish, POLICY)} == {4}


def test_memory_divides_evenly_among_clients() -> None:
    """B1: limits are per process; the pod's share is split by the number of clients."""
    (option,) = options_of(demand("m", point(50, instances=3, memory_mib=1000)), POLICY)
    assert (option.clients, option.memory_mib) == (3, 1002)


def test_a_client_gets_at_least_one_percent() -> None:
    assert not options_of(demand("m", point(2, instances=3)), POLICY)


def test_options_that_another_beats_in_everything_are_gone() -> None:
    wish = demand("m", point(20), point(40), point(40, batch=2, ms=15, memory_mib=500), rate=5)
    assert {(o.percent, o.batch) for o in options_of(wish, POLICY)} == {(20, 1), (40, 2)}


def test_the_rule_of_parvagpu_is_strict() -> None:
    """Latency has to be below 0.45 x objective: at exactly that it is not."""
    policy = PlannerPolicy(latency_rule="parvagpu")
    (option,) = options_of(demand("m", point(100, ms=45), ms=100.1), policy)
    assert option.replica_per_s == option.full_per_s
    assert not options_of(demand("m", point(100, ms=45), ms=100.0), policy)
