"""From profile to options: latency rule, monotone surface, modes."""

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
    assert predicted_ms(best, wish, "backlog", replicas=1) == pytest.approx(2 * 8 * 1.1)


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
    assert options_of(demand("m", point(50, ms=10), ms=20.0), PLAIN)
    assert not options_of(demand("m", point(50, ms=10), ms=19.99), PLAIN)


def test_the_percentile_of_a_batch_counts_not_its_mean() -> None:
    assert not options_of(demand("m", point(50, ms=10, p99_ms=30), ms=39), PLAIN)
    assert options_of(demand("m", point(50, ms=10, p99_ms=30), ms=40), PLAIN)


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
