"""Cases with a known answer, one table each; names of nodes are gpu-1 and gpu-10 where it matters."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpulet.model.device import Device, Taint, Toleration
from gpulet.model.plan import Placed, Plan, PlannerPolicy, Problem, Refusal, Slot, Unplaced, Usage
from gpulet.planner import plan
from tests.planner.worlds import CUT, P, demand, device, faults, gpu, node, point


def one(found: Plan, name: str) -> Placed:
    return next(p for p in found.placed if p.model.name == name)


def left_out(found: Plan, name: str) -> Unplaced:
    return next(u for u in found.unplaced if u.model.name == name)


@pytest.mark.parametrize(("models", "fit"), [(23, 23), (24, 23)])
def test_memory_is_counted_in_whole_mebibytes(models: int, fit: int) -> None:
    """D11: 23 models of 2000 MiB fit 46068 MiB, the 24th does not."""
    wishes = tuple(demand(f"m{i:02d}", point(4, memory_mib=2000), rate=1) for i in range(models))
    found = plan(Problem((gpu(0, memory_mib=46_068),), (node(),), wishes))
    assert len(found.placed) == fit
    assert [u.reason for u in found.unplaced] == ["NoMemory"] * (models - fit)


def test_two_models_of_20_gb_fit_a_card_of_40_by_its_usable_memory_alone() -> None:
    """D19: usable memory counts, not the name of the card."""
    wishes = tuple(demand(f"m{i}", point(50, memory_mib=20_480)) for i in range(2))
    assert len(plan(Problem((gpu(0, memory_mib=40_960),), (node(),), wishes)).placed) == 2
    assert len(plan(Problem((gpu(0, memory_mib=40_500),), (node(),), wishes)).placed) == 1


def test_the_client_beyond_the_cap_stays_out() -> None:
    """A13: the MPS client cap of a device is a limit like memory."""
    wishes = tuple(demand(f"m{i}", point(10, instances=2), rate=1) for i in range(4))
    found = plan(Problem((gpu(0, clients=6),), (node(),), wishes))
    assert len(found.placed) == 3
    assert [u.reason for u in found.unplaced] == ["MaxClients"]
    assert "MPS clients" in found.unplaced[0].message


def test_a_mig_instance_has_a_smaller_cap() -> None:
    """A13: inside a placement MPS takes fewer clients."""
    cut = tuple(p for p in CUT if p.profile == "1g.10gb")
    wish = demand("m", point(100, mig="1g.10gb", instances=7))
    assert left_out(plan(Problem((gpu(0, placements=cut),), (node(),), (wish,))), "m").reason == "MaxClients"


def test_what_others_use_is_subtracted() -> None:
    """D6: a foreign process's memory and percent are not given away."""
    usage = Usage(device(0), 60, 70_000, 1, "elsewhere", "Any")
    wish = demand("m", point(40, memory_mib=11_920), isolation="Any")
    assert plan(Problem((gpu(0),), (node(),), (wish,), (usage,))).gpus == 1
    tight = Problem((gpu(0),), (node(),), (demand("m", point(40, memory_mib=11_921), isolation="Any"),), (usage,))
    assert left_out(plan(tight), "m").reason == "NoMemory"


def test_every_gpu_with_room_counts_and_a_full_one_is_never_chosen() -> None:
    """D10: the third model goes to the GPU that has room."""
    full = Usage(device(0), 100, 80_000, 40, "vision", "Namespace")
    half = Usage(device(1, node="gpu-10"), 50, 8_000, 1, "vision", "Namespace")
    problem = Problem((gpu(0), gpu(1, "gpu-10")), (node(), node("gpu-10")), (demand("m", point(50)),), (full, half))
    assert [s.device.gpu for s in plan(problem).slots] == ["GPU-1"]


def test_equal_replicas_are_told_apart() -> None:
    """D17: two models with identical shares, and two replicas of one, are four slots."""
    wishes = tuple(demand(name, point(25, ms=10), rate=120, ms=25) for name in ("a", "b"))
    found = plan(Problem((gpu(0),), (node(),), wishes))
    assert faults(Problem((gpu(0),), (node(),), wishes), found) == []
    assert all(len(p.slots) == len({s.ordinal for s in p.slots}) for p in found.placed)


def test_a_larger_profile_is_not_blocked_by_a_greedy_start() -> None:
    """E2: 1g placed at the lowest start would block 4g; all three fit one GPU."""
    wishes = tuple(
        demand(name, point(100, mig=mig)) for name, mig in (("a", "1g.10gb"), ("b", "2g.20gb"), ("c", "4g.40gb"))
    )
    found = plan(Problem((gpu(0, placements=CUT),), (node(),), wishes))
    assert found.gpus == 1
    assert not found.unplaced


def test_scattered_slices_are_moved_together_when_that_saves_a_gpu() -> None:
    """E1: 1g at start 0 leaves no place for 4g although enough is free; it moves, and one GPU serves both."""
    small, large = demand("a", point(100, mig="1g.10gb")), demand("b", point(100, mig="4g.40gb"))
    stuck = Slot(small.model, device(0, "1g.10gb", 0), 100, 1000, 1, 1, 1)
    found = plan(Problem((gpu(0, placements=CUT), gpu(1, placements=CUT)), (node(),), (small, large), current=(stuck,)))
    assert found.gpus == found.lower_bound == 1
    assert {s.device.gpu for s in found.slots} == {"GPU-0"}


def test_gpus_of_one_node_keep_their_own_geometry() -> None:
    """E3: one GPU of a node in MIG mode, the other not."""
    cut_only, whole_only = gpu(0, whole=False, placements=CUT), gpu(1)
    wishes = (demand("a", point(100, mig="3g.40gb"), mode="MIG"), demand("b", point(50), mode="MPS"))
    found = plan(Problem((cut_only, whole_only), (node(),), wishes))
    assert {p.model.name: p.slots[0].device.gpu for p in found.placed} == {"a": "GPU-0", "b": "GPU-1"}


def test_node_names_are_compared_whole() -> None:
    """E10: what is said of gpu-1 says nothing of gpu-10."""
    wish = demand("m", point(50), nodes=("gpu-10",))
    problem = Problem((gpu(0, "gpu-1"), gpu(0, "gpu-10")), (node("gpu-1"), node("gpu-10")), (wish,))
    assert [s.device.node for s in plan(problem).slots] == ["gpu-10"]
    refused = replace(problem, refusals=(Refusal(wish.model, device(0, node="gpu-10"), "full"),))
    assert left_out(plan(refused), "m")
    other = replace(problem, refusals=(Refusal(wish.model, device(0, node="gpu-1"), "full"),))
    assert [s.device.node for s in plan(other).slots] == ["gpu-10"]


def test_a_card_that_is_gone_is_planned_around() -> None:
    """F6: after a swap the old UUID is unknown; its replica is planned on the new card."""
    wish = demand("m", point(50))
    first = plan(Problem((gpu(0),), (node(),), (wish,)))
    found = plan(Problem((gpu(7),), (node(),), (wish,), current=first.slots))
    assert [s.device.gpu for s in found.slots] == ["GPU-7"]


def test_a_tainted_gpu_is_left() -> None:
    wish = demand("m", point(50))
    problem = Problem((gpu(0), gpu(1)), (node(),), (wish,))
    slots = plan(problem).slots
    bad = replace(problem, gpus=(gpu(0, schedulable=False), gpu(1)), current=slots)
    assert [s.device.gpu for s in slots] == ["GPU-0"]
    assert [s.device.gpu for s in plan(bad).slots] == ["GPU-1"]


def test_taints_of_nodes_need_tolerations() -> None:
    hosts = (node(taints=(Taint("gpu", "yes", "NoSchedule"),)),)
    plain, tolerant = (
        demand("m", point(50)),
        demand("m", point(50), tolerations=(Toleration("gpu", "Exists", None, None),)),
    )
    refused = left_out(plan(Problem((gpu(0),), hosts, (plain,))), "m")
    assert refused.reason == "NoDevice"
    assert "gpu=yes:NoSchedule" in refused.message
    assert plan(Problem((gpu(0),), hosts, (tolerant,))).gpus == 1


def test_namespaces_do_not_mix_unless_both_agree() -> None:
    def world(*isolations: str) -> Plan:
        wishes = tuple(
            demand("m", point(30), namespace=f"ns{i}", isolation=isolation) for i, isolation in enumerate(isolations)
        )
        return plan(Problem((gpu(0), gpu(1), gpu(2)), (node(),), wishes))

    assert world("Any", "Any").gpus == 1
    assert world("Any", "Namespace").gpus == 2
    assert world("None", "Any", "Any").gpus == 2


def test_nobody_serves_beside_a_tuner_but_in_another_mig_instance() -> None:
    tuner = Usage(device(0, "3g.40gb", 4), 40, 4000, 1, "vision", "Any", "tune")
    wish = demand("m", point(100, mig="3g.40gb"), point(20))
    found = plan(Problem((gpu(0, placements=CUT),), (node(),), (wish,), (tuner,)))
    assert [(s.device.profile, s.device.start) for s in found.slots] == [("3g.40gb", 0)]
    whole = replace(tuner, device=device(0))
    assert not plan(Problem((gpu(0, placements=CUT),), (node(),), (wish,), (whole,))).placed


def test_host_cpu_of_a_simulated_gpu_is_its_share_rounded_up() -> None:
    wishes = tuple(demand(f"m{i}", point(33)) for i in range(3))
    cards = (gpu(0, simulated_millicores=1000),)
    assert len(plan(Problem(cards, (node(cpu=990),), wishes)).placed) == 3
    found = plan(Problem(cards, (node(cpu=989),), wishes))
    assert [u.reason for u in found.unplaced] == ["NoHostResources"]


def test_cheapest_not_fewest_when_gpus_have_prices() -> None:
    small, large = "NVIDIA-SMALL", P
    points = (point(100, product=small, ms=10), point(100, product=large, ms=5))
    wish = demand("m", *points, rate=100, ms=40)
    cards = (gpu(0), gpu(1, product=small), gpu(2, product=small), gpu(3, product=small))
    cheap = PlannerPolicy(prices=((large, 10.0), (small, 1.0)))
    assert {s.device.gpu for s in plan(Problem(cards, (node(),), (wish,))).slots} == {"GPU-0"}
    found = plan(Problem(cards, (node(),), (wish,), policy=cheap))
    assert found.gpus > 1
    assert found.lower_bound == 1
    assert "GPU-0" not in {s.device.gpu for s in found.slots}


def test_a_growing_rate_adds_a_replica_and_moves_nothing() -> None:
    wish = demand("m", point(40, ms=10), rate=40, ms=60)
    problem = Problem((gpu(0), gpu(1)), (node(),), (wish,))
    first = plan(problem)
    grown = plan(replace(problem, demands=(replace(wish, requests_per_s=85),), current=first.slots))
    assert len(first.slots) == 1
    assert len(grown.slots) == 2
    assert set(first.slots) < set(grown.slots)


def test_a_shrinking_rate_keeps_the_share_that_exists() -> None:
    wish = demand("m", point(10, ms=40), point(50, ms=8), rate=50, ms=100)
    problem = Problem((gpu(0), gpu(1)), (node(),), (wish,))
    first = plan(problem)
    assert first.slots[0].compute_percent == 50
    after = plan(replace(problem, demands=(replace(wish, requests_per_s=1),), current=first.slots))
    assert after.slots == first.slots


def test_a_share_shrinks_when_that_saves_a_gpu() -> None:
    wish = demand("m", point(10, ms=40), point(60, ms=8), rate=1)
    other = demand("n", point(50))
    big = Slot(wish.model, device(0), 60, 1000, 1, 1, 1)
    found = plan(Problem((gpu(0), gpu(1)), (node(),), (wish, other), current=(big,)))
    assert found.gpus == 1
    assert one(found, "m").slots[0].compute_percent == 10


def test_higher_priority_goes_first_then_who_is_served_then_the_name() -> None:
    a, b = demand("a", point(100)), demand("b", point(100))
    cards, hosts = (gpu(0),), (node(),)
    assert one(plan(Problem(cards, hosts, (a, b))), "a")
    assert one(plan(Problem(cards, hosts, (a, replace(b, priority=1)))), "b")
    served = plan(Problem(cards, hosts, (b,))).slots
    assert one(plan(Problem(cards, hosts, (a, b), current=served)), "b")


def test_a_model_that_cannot_be_served_blocks_nobody() -> None:
    bad = demand("bad", point(50, ms=500), priority=100)
    found = plan(Problem((gpu(0),), (node(),), (bad, demand("good", point(50)))))
    assert one(found, "good")
    assert left_out(found, "bad").reason == "ObjectiveInfeasible"


def test_a_rate_beyond_the_cluster_gets_what_there_is_and_says_what_is_missing() -> None:
    wish = demand("m", point(50, ms=10), rate=1000, ms=60)
    found = plan(Problem((gpu(0), gpu(1)), (node(),), (wish, demand("n", point(50)))))
    answer = left_out(found, "m")
    assert answer.reason == "RateBeyondCluster"
    assert len(one(found, "m").slots) == 3
    assert one(found, "m").sustainable_per_s < 1000
    assert f"{one(found, 'm').sustainable_per_s:.4g} requests/s" in answer.message
    assert f"more GPUs of {P}" in answer.message
    assert one(found, "n")


def test_a_current_share_between_measured_ones_counts_as_the_lower_one() -> None:
    wish = demand("m", point(20, ms=20), point(40, ms=10), rate=5, ms=100)
    between = Slot(wish.model, device(0), 30, 1000, 1, 1, 1)
    found = plan(Problem((gpu(0),), (node(),), (wish,), current=(between,)))
    assert found.slots == (between,)
    assert found.placed[0].predicted_latency_ms == pytest.approx(2 * 20 * 1.1)


def test_a_new_artifact_is_a_new_replica() -> None:
    wish = demand("m", point(50))
    problem = Problem((gpu(0),), (node(),), (wish,))
    first = plan(problem).slots
    tuned = replace(problem, demands=(replace(wish, artifact="pvc://models/tuned.so"),), current=first)
    assert {s.artifact for s in plan(tuned).slots} == {"pvc://models/tuned.so"}


def test_nothing_to_place_is_an_empty_plan() -> None:
    assert plan(Problem((gpu(0),), (node(),), ())) == Plan(
        (), (), 0, 0, "proven", plan(Problem((), (), ())).bound_covers
    )
    assert plan(Problem((), (), (demand("m", point(50)),))).unplaced[0].reason == "NoDevice"


EXPLAINED = [
    ("NoProfile", demand("m"), "no points"),
    ("NoProfile", demand("m", point(50, product="NVIDIA-OTHER")), "NVIDIA-OTHER"),
    ("NoDevice", demand("m", point(50), products=("NVIDIA-OTHER",)), "spec.products"),
    ("NoDevice", demand("m", point(50), mode="MIG"), "sharing.mode MIG"),
    ("NoDevice", demand("m", point(50), nodes=("elsewhere",)), "cannot be mounted on node gpu-1"),
    ("ObjectiveInfeasible", demand("m", point(100, ms=8.2), ms=5), "slo.latencyMilliseconds 5 is below the"),
    ("NoMemory", demand("m", point(50, memory_mib=90_000)), "needs 90000 MiB"),
    ("NoHostResources", demand("m", point(50), host_memory_mib=900_000), "podTemplate"),
    ("NoProfile", demand("m", point(50), fixed_batch=8), "batch 8"),
]


@pytest.mark.parametrize(("reason", "wish", "words"), EXPLAINED)
def test_who_does_not_fit_is_told_why(reason: str, wish: object, words: str) -> None:
    answer = left_out(plan(Problem((gpu(0),), (node(),), (wish,))), "m")  # type: ignore[arg-type]
    assert (answer.reason, words in answer.message) == (reason, True), answer.message


def test_isolation_and_refusals_are_named() -> None:
    first, second = demand("a", point(40), namespace="one"), demand("b", point(40), namespace="two")
    problem = Problem((gpu(0),), (node(),), (first, second))
    answer = left_out(plan(problem), "b")
    assert answer.reason == "Isolation"
    assert "sharing.isolation" in answer.message
    quota = Refusal(first.model, None, "quota of namespace one")
    assert left_out(plan(replace(problem, refusals=(quota,))), "a").message.endswith("quota of namespace one")


def test_a_device_that_refused_is_not_asked_again() -> None:
    wish = demand("m", point(50))
    problem = Problem((gpu(0), gpu(1)), (node(),), (wish,))
    again = replace(problem, refusals=(Refusal(wish.model, Device("gpu-1", "GPU-0"), "Insufficient cpu"),))
    assert [s.device.gpu for s in plan(again).slots] == ["GPU-1"]


def test_the_reserve_is_a_wish_not_a_limit() -> None:
    found = plan(Problem((gpu(0),), (node(),), (demand("m", point(50)),)))
    assert found.gpus == 1
    assert any("transitionReserve" in note for note in found.notes)
