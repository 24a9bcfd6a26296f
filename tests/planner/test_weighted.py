"""The weighted split: what holds of every plan, over generated small worlds and the synthetic oracle."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpulet.model.demand import Demand, ModelId
from gpulet.model.plan import Plan, PlannerPolicy, Problem, Usage
from gpulet.model.profile import Profile
from gpulet.planner import plan
from gpulet.planner.assign import Fleet
from gpulet.planner.eligibility import Rules
from gpulet.planner.packing import Packing
from gpulet.planner.weighted.aggregate import aggregate
from gpulet.planner.weighted.catalogue import Catalogue
from gpulet.planner.weighted.market import Market, market_of
from gpulet.planner.weighted.patterns import patterns_of
from gpulet.planner.weighted.prices import prices_of
from tests.planner.test_properties import problems
from tests.planner.worlds import CUT, demand, device, faults, gpu, node, point

SLOW = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
WEIGHTED = PlannerPolicy(split="weighted")
EXACT = replace(WEIGHTED, latency_rule="half", interference_margin=0.0, transition_reserve=0)


def weighted(problem: Problem, *, turns: bool = False) -> Problem:
    return replace(problem, policy=replace(problem.policy, split="weighted", time_sharing=turns))


def market(problem: Problem) -> Market:
    rules = Rules.of(problem)
    return market_of(problem, Packing(problem, rules), Fleet.of(problem, rules), Catalogue(problem.policy))


@SLOW
@given(problems(), st.booleans())
def test_no_plan_breaks_a_limit(problem: Problem, turns: bool) -> None:
    """D3, D6, D10, E3: percent, memory, clients, MIG slices, isolation, hosts, refusals; never below its bound."""
    asked = weighted(problem, turns=turns)
    assert faults(asked, plan(asked)) == []


@SLOW
@given(problems(), st.randoms(use_true_random=False), st.booleans())
def test_order_does_not_matter(problem: Problem, chance: Any, turns: bool) -> None:
    def shuffled(values: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(chance.sample(values, len(values)))

    asked = weighted(problem, turns=turns)
    other = replace(
        asked,
        gpus=shuffled(asked.gpus),
        nodes=shuffled(asked.nodes),
        demands=tuple(replace(d, profile=Profile(shuffled(d.profile.points))) for d in shuffled(asked.demands)),
    )
    assert plan(other) == plan(asked)


@SLOW
@given(problems(), st.booleans())
def test_the_plan_of_the_planned_world_changes_nothing(problem: Problem, turns: bool) -> None:
    asked = weighted(problem, turns=turns)
    first = plan(asked)
    second = plan(replace(asked, current=first.slots))
    assert set(second.slots) == set(first.slots)
    assert {u.model for u in second.unplaced} == {u.model for u in first.unplaced}


@SLOW
@given(problems(), st.lists(st.sampled_from([0.3, 0.8, 1.0, 1.2, 2.0]), min_size=4, max_size=4))
def test_what_exists_never_costs_more_gpus_than_keeping_it(problem: Problem, factors: list[float]) -> None:
    asked = weighted(problem)
    first = plan(asked)
    changed = tuple(
        replace(d, requests_per_s=d.requests_per_s * f) for d, f in zip(asked.demands, factors, strict=False)
    )
    later = replace(asked, demands=changed, current=first.slots)
    second = plan(later)
    assert faults(later, second) == []
    carried = {p.model: p.sustainable_per_s for p in first.placed}
    if not second.unplaced and all(carried.get(d.model, 0.0) >= d.requests_per_s for d in changed):
        assert second.gpus <= first.gpus


@SLOW
@given(problems())
def test_mixed_sizes_never_need_more_gpus_than_even_ones(problem: Problem) -> None:
    """Whatever an even split can do, a weighted one can; where the fast method is one off, the bound shows it."""
    even, mixed = plan(problem), plan(weighted(problem))
    if not even.unplaced and not mixed.unplaced:
        assert mixed.lower_bound <= even.gpus
        assert mixed.gpus <= even.gpus + 1


SIZES = {"1g.10gb": 1, "2g.20gb": 2, "3g.40gb": 3, "4g.40gb": 4, "7g.80gb": 7}
SHARES = (20, 40, 50, 60, 80, 100)


def oracle(number: int, family: str) -> Problem:
    """A synthetic instance whose optimum is known: capacity grows with the size to the power of 0.6 to 1."""
    wishes = []
    for i in range(number):
        power, base = 0.60 + 0.05 * (i % 9), 50 + 37 * (i % 13)
        sizes = SIZES if family == "mig" else {str(p): p / 20 for p in SHARES}
        points = []
        for index, (name, size) in enumerate(sizes.items()):
            per_s = base * size**power
            if i % 5 == 0 and index == 0:
                continue
            mig = name if family == "mig" else None
            points.append(
                replace(point(100 if mig else int(name), mig=mig, ms=1.0, memory_mib=100), throughput_per_s=per_s)
            )
        rate = base * (0.5 + ((7 * i) % 23) / 4)
        wishes.append(demand(f"m{i:04d}", *points, rate=rate, ms=100.0))
    cut = CUT if family == "mig" else ()
    cards = tuple(gpu(i, whole=family != "mig", placements=cut) for i in range(2 * number))
    return Problem(cards, (node(cpu=10**9, memory_mib=10**9, free_pods=10**6),), tuple(wishes), policy=EXACT)


@pytest.mark.parametrize(
    ("family", "number", "optimum", "bound"),
    [
        ("mig", 10, 6, 5.286),
        ("mig", 50, 27, 26.571),
        ("mig", 200, 108, 107.429),
        ("mps", 10, 8, 7.3),
        ("mps", 50, 37, 36.7),
        ("mps", 200, 148, 147.4),
    ],
)
def test_the_known_optimum_and_its_bound(family: str, number: int, optimum: int, bound: float) -> None:
    problem = oracle(number, family)
    found = plan(problem)
    assert faults(problem, found) == []
    assert found.gpus == found.lower_bound == optimum
    table = market(problem)
    assert prices_of(table, patterns_of(table)).bound == pytest.approx(bound, abs=1e-3)


@pytest.mark.parametrize("family", ["mig", "mps"])
def test_the_referee_agrees(family: str) -> None:
    """The aggregated program proves over every mix of sizes what the fast method found in its family of patterns."""
    table = market(oracle(50, family))
    referee = aggregate(table)
    assert referee.replicas is not None
    assert referee.columns is not None
    optimum = sum(referee.columns.values())
    assert int(np.ceil(referee.bound - 1e-6)) == optimum
    assert prices_of(table, patterns_of(table)).bound <= optimum + 1


def test_fine_grids_of_shares_are_within_one_gpu_of_the_bound() -> None:
    """Every 5 %: 627 multisets, which are not enumerated."""
    wishes = []
    for i in range(60):
        base, power = 40 + 31 * (i % 11), 0.55 + 0.05 * (i % 8)
        points = [
            replace(point(p, ms=1.0, memory_mib=50), throughput_per_s=base * (p / 20) ** power)
            for p in range(5, 101, 5)
        ]
        wishes.append(demand(f"m{i:03d}", *points, rate=base * (0.4 + ((5 * i) % 17) / 5), ms=100.0))
    cards = tuple(gpu(i) for i in range(100))
    problem = Problem(cards, (node(cpu=10**9, memory_mib=10**9, free_pods=10**6),), tuple(wishes), policy=EXACT)
    found = plan(problem)
    assert faults(problem, found) == []
    assert not found.unplaced
    assert found.gpus <= found.lower_bound + 1


def test_mixed_sizes_save_what_even_ones_cannot() -> None:
    """One model: a 4g and a 3g carry its rate on one GPU; equal sizes need two."""
    wish = demand("m", point(100, mig="4g.40gb", ms=10), point(100, mig="3g.40gb", ms=14), rate=165, ms=100)
    problem = Problem((gpu(0, placements=CUT), gpu(1, placements=CUT)), (node(),), (wish,), policy=EXACT)
    assert plan(replace(problem, policy=replace(EXACT, split="even"))).gpus == 2
    found = plan(problem)
    (placed,) = found.placed
    assert found.gpus == 1
    assert {s.device.profile for s in placed.slots} == {"3g.40gb", "4g.40gb"}
    assert sum(placed.slot_per_s) == pytest.approx(placed.sustainable_per_s)
    assert placed.slot_per_s[0] != placed.slot_per_s[1]


def test_memory_of_whole_gpus_binds_seat_by_seat() -> None:
    """Shares that fit by percent but not by memory are spread, and nobody is lost."""
    wishes = tuple(demand(f"m{i}", point(25, memory_mib=30_000), rate=5) for i in range(6))
    problem = Problem(tuple(gpu(i) for i in range(4)), (node(),), wishes, policy=WEIGHTED)
    found = plan(problem)
    assert faults(problem, found) == []
    assert not found.unplaced
    assert found.gpus == 3


def test_priority_decides_who_is_left_out() -> None:
    wishes = tuple(demand(f"m{i}", point(50), rate=5, priority=i) for i in range(5))
    found = plan(Problem((gpu(0), gpu(1)), (node(),), wishes, policy=WEIGHTED))
    assert [u.model.name for u in found.unplaced] == ["m0"]


def test_a_rate_beyond_the_cluster_gets_what_fits() -> None:
    wish = demand("m", point(50, ms=10), rate=1000, ms=100)
    found = plan(Problem((gpu(0),), (node(),), (wish,), policy=EXACT))
    assert [u.reason for u in found.unplaced] == ["RateBeyondCluster"]
    assert found.placed[0].sustainable_per_s == pytest.approx(200)


def test_usages_leave_less_room() -> None:
    """D6: a foreign share of 60 % leaves 40 % of that GPU, and no cut."""
    usage = Usage(device(0), 60, 8_000, 1, "elsewhere", "Any")
    wishes = tuple(demand(f"m{i}", point(40), isolation="Any") for i in range(3))
    problem = Problem((gpu(0, placements=CUT), gpu(1, placements=CUT)), (node(),), wishes, (usage,), policy=WEIGHTED)
    found = plan(problem)
    assert faults(problem, found) == []
    assert not found.unplaced


def test_drifting_rates_move_few_replicas() -> None:
    """Rates x U(0.8, 1.2): few moves and hardly a GPU cut anew for some 3 % more GPUs."""
    problem = oracle(100, "mig")
    first = plan(problem)
    drifted = tuple(
        replace(d, requests_per_s=d.requests_per_s * (0.8 + 0.4 * ((37 * i) % 101) / 100))
        for i, d in enumerate(problem.demands)
    )
    second = plan(replace(problem, demands=drifted, current=first.slots))
    fresh = plan(replace(problem, demands=drifted))
    assert faults(replace(problem, demands=drifted), second) == []
    moved = len(set(second.slots) - set(first.slots))
    assert moved <= 0.2 * len(first.slots)
    assert recut(first, second) <= 0.05 * first.gpus
    assert second.gpus <= fresh.gpus * 1.05 + 1


def recut(first: Plan, second: Plan) -> int:
    """GPUs on which a placement is made where another, different one was."""
    sizes = {p.profile: p.size for p in CUT}
    clashes = {
        new.gpu
        for new in {s.device for s in second.slots}
        for old in {s.device for s in first.slots}
        if new != old and new.overlaps(old, sizes)
    }
    return len(clashes)


def test_names_do_not_matter() -> None:
    found: list[Plan] = []
    for prefix in ("a", "z"):
        wishes: tuple[Demand, ...] = tuple(
            replace(d, model=ModelId("vision", prefix + d.model.name)) for d in oracle(10, "mig").demands
        )
        found.append(plan(replace(oracle(10, "mig"), demands=wishes)))
    assert found[0].gpus == found[1].gpus


SHARED = replace(EXACT, time_sharing=True)


def small(name: str, rate: float, **changes: Any) -> Demand:
    """8 ms for one request, 1 ms for each further one of a batch, on a whole GPU alone."""
    points = tuple(point(100, batch=b, ms=7.0 + b) for b in (1, 2, 4, 8))
    return demand(name, *points, rate=rate, ms=100.0, **changes)


def test_small_models_take_turns() -> None:
    """Eight models of 10 requests/s need a whole GPU each by size alone; in turns one holds them all."""
    wishes = tuple(small(f"m{i}", 10.0) for i in range(8))
    problem = Problem(tuple(gpu(i) for i in range(8)), (node(),), wishes, policy=SHARED)
    found = plan(problem)
    assert faults(problem, found) == []
    assert found.gpus == 1
    assert found.bound_kind == "volume"
    assert any("time sharing" in covered for covered in found.bound_covers)
    assert plan(replace(problem, policy=EXACT)).gpus == 8
    for slot in found.slots:
        assert slot.clients == len(slot.turns)
        assert slot.memory_mib >= 1000 * len(slot.turns)
        for turn in slot.turns:
            assert turn.batch >= 10.0 * slot.cycle_us / 1e6
            assert (slot.cycle_us + turn.busy_us) / 1000 <= 100.0
    assert set(plan(replace(problem, current=found.slots)).slots) == set(found.slots)


def test_nobody_takes_turns_across_namespaces_or_against_their_isolation() -> None:
    wishes = (small("a", 10.0, namespace="red"), small("b", 10.0, namespace="blue"), small("c", 10.0, isolation="None"))
    problem = Problem(tuple(gpu(i) for i in range(4)), (node(),), wishes, policy=SHARED)
    found = plan(problem)
    assert faults(problem, found) == []
    assert found.gpus == 3


def test_turns_of_a_grown_model_are_planned_anew() -> None:
    wishes = tuple(small(f"m{i}", 10.0) for i in range(4))
    problem = Problem(tuple(gpu(i) for i in range(8)), (node(),), wishes, policy=SHARED)
    first = plan(problem)
    grown = replace(problem, demands=(small("m0", 60.0), *wishes[1:]), current=first.slots)
    second = plan(grown)
    assert faults(grown, second) == []
    assert not second.unplaced


def test_large_models_gain_nothing_by_turns() -> None:
    problem = oracle(50, "mig")
    shared = replace(problem, policy=replace(problem.policy, time_sharing=True))
    assert plan(shared).gpus <= plan(problem).gpus
