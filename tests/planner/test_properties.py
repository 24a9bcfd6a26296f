"""What holds of every plan, over generated small worlds."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpulet.model.demand import Demand, ModelId
from gpulet.model.device import Device, Gpu, Node, Placement, Taint, Toleration
from gpulet.model.plan import PlannerPolicy, Problem, Refusal, Slot, Usage
from gpulet.model.profile import Profile, ProfilePoint
from gpulet.planner import plan
from gpulet.planner.throughput import Option, options_of
from tests.planner.worlds import CUT, P, cut_faults, device_faults, faults, millicores_of, point

SMALL_CUT = tuple(p for p in CUT if p.profile in ("1g.10gb", "3g.40gb", "4g.40gb"))
SLOW = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    points: list[ProfilePoint] = []
    work_ms = draw(st.sampled_from([2.0, 5.0, 9.0]))
    for percent in draw(st.lists(st.sampled_from([10, 25, 30, 50, 60, 100]), min_size=1, max_size=3, unique=True)):
        memory_mib = draw(st.sampled_from([1000, 9000, 30_000, 45_000]))
        for batch in (1, 4):
            ms = work_ms * (2 + batch) / 3 * (100 / percent) ** 0.8
            points.append(point(percent, batch=batch, ms=ms, memory_mib=memory_mib + 100 * batch))
    if draw(st.booleans()):
        points.append(point(100, mig="1g.10gb", ms=work_ms * 6, memory_mib=draw(st.sampled_from([2000, 12_000]))))
        points.append(point(100, mig="3g.40gb", ms=work_ms * 2, memory_mib=2000))
    return Profile(tuple(points))


@st.composite
def demands(draw: st.DrawFn, index: int) -> Demand:
    return Demand(
        model=ModelId(draw(st.sampled_from(["red", "blue"])), f"m{index}"),
        requests_per_s=draw(st.sampled_from([1.0, 30.0, 90.0, 200.0])),
        latency_ms=draw(st.sampled_from([40.0, 120.0, 400.0])),
        percentile=99,
        profile=draw(profiles()),
        mode=draw(st.sampled_from(["Auto", "Auto", "MPS", "MIG", "Exclusive"])),
        isolation=draw(st.sampled_from(["Any", "Namespace", "Namespace", "None"])),
        priority=draw(st.sampled_from([0, 0, 10])),
        host_cpu_millicores=1000,
        host_memory_mib=1024,
        tolerations=(Toleration("gpu", "Exists", None, None),) * draw(st.sampled_from([0, 1, 1])),
    )


@st.composite
def problems(draw: st.DrawFn, gpus: int = 3, models: int = 4) -> Problem:
    nodes = ("gpu-1", "gpu-10")
    taint = (Taint("gpu", "", "NoSchedule"),)
    units = [
        Gpu(
            node=nodes[index % 2],
            uuid=f"GPU-{index}",
            product=P,
            memory_mib=81_920,
            clients=draw(st.sampled_from([2, 48])),
            placements=draw(st.sampled_from([(), SMALL_CUT])),
            schedulable=draw(st.sampled_from([True, True, True, False])),
            simulated_millicores=draw(st.sampled_from([0, 0, 2000])),
        )
        for index in range(draw(st.integers(1, gpus)))
    ]
    hosts = tuple(
        Node(
            name, draw(st.sampled_from([2500, 64_000])), 64_000, draw(st.sampled_from([2, 110])), taints=taint * tainted
        )
        for name, tainted in zip(nodes, draw(st.sampled_from([(0, 0), (0, 0), (0, 1)])), strict=True)
    )
    wishes = tuple(draw(demands(i)) for i in range(draw(st.integers(1, models))))
    return Problem(tuple(units), hosts, wishes, draw(usages(units)), refusals=draw(refusals(units, wishes)))


@st.composite
def usages(draw: st.DrawFn, units: list[Gpu]) -> tuple[Usage, ...]:
    if not draw(st.booleans()):
        return ()
    one = draw(st.sampled_from(units))
    where = Device(one.node, one.uuid)
    if one.placements and draw(st.booleans()):
        where = Device(one.node, one.uuid, "3g.40gb", 4)
    return (
        Usage(
            device=where,
            compute_percent=draw(st.sampled_from([10, 40, 100])),
            memory_mib=8000,
            clients=1,
            namespace=draw(st.sampled_from(["red", "green"])),
            isolation=draw(st.sampled_from(["Any", "Namespace", "None"])),
            purpose=draw(st.sampled_from(["serve", "tune", "profile", "foreign"])),
        ),
    )


@st.composite
def refusals(draw: st.DrawFn, units: list[Gpu], wishes: tuple[Demand, ...]) -> tuple[Refusal, ...]:
    if draw(st.integers(0, 3)):
        return ()
    one = draw(st.sampled_from(units))
    return (Refusal(wishes[0].model, draw(st.sampled_from([None, Device(one.node, one.uuid)])), "quota"),)


@SLOW
@given(problems())
def test_no_plan_breaks_a_limit(problem: Problem) -> None:
    """D3, D6, D10, E3: percent, memory, clients, MIG slices, isolation, hosts, refusals; never below its bound."""
    assert faults(problem, plan(problem)) == []


@SLOW
@given(problems(), st.randoms(use_true_random=False))
def test_order_does_not_matter(problem: Problem, chance: Any) -> None:
    def shuffled(values: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(chance.sample(values, len(values)))

    other = replace(
        problem,
        gpus=shuffled(problem.gpus),
        nodes=shuffled(problem.nodes),
        demands=tuple(replace(d, profile=Profile(shuffled(d.profile.points))) for d in shuffled(problem.demands)),
    )
    assert plan(other) == plan(problem)


@SLOW
@given(problems())
def test_the_plan_of_the_planned_world_changes_nothing(problem: Problem) -> None:
    first = plan(problem)
    second = plan(replace(problem, current=first.slots))
    assert set(second.slots) == set(first.slots)
    assert {u.model for u in second.unplaced} == {u.model for u in first.unplaced}


@SLOW
@given(problems())
def test_removing_a_demand_never_adds_gpus_nor_moves_for_nothing(problem: Problem) -> None:
    first = plan(problem)
    if first.unplaced:
        return
    fewer = replace(problem, demands=problem.demands[1:])
    assert plan(fewer).gpus <= first.gpus
    after = plan(replace(fewer, current=first.slots))
    left = {s for s in first.slots if s.model != problem.demands[0].model}
    if set(after.slots) != left:  # a slot moved: a GPU was saved by it
        assert after.gpus < len({(s.device.node, s.device.gpu) for s in left})


@SLOW
@given(problems())
def test_a_higher_priority_is_not_left_out_for_a_lower_one(problem: Problem) -> None:
    """Whoever is left out does not fit even without all models of lower priority."""
    found = plan(problem)
    for unplaced in found.unplaced:
        wish = next(d for d in problem.demands if d.model == unplaced.model)
        among = tuple(d for d in problem.demands if d.priority > wish.priority or d.model == wish.model)
        alone = plan(replace(problem, demands=among))
        higher_in = {p.model for p in found.placed} - {u.model for u in found.unplaced}
        if {d.model for d in among} - {wish.model} <= higher_in:
            same_level = [d for d in problem.demands if d.priority == wish.priority and d.model != wish.model]
            assert same_level or unplaced.model in {u.model for u in alone.unplaced}


def brute_force(problem: Problem) -> int | None:
    """Fewest GPUs over every option per model and every device per replica; None if not all models fit."""
    ways = [options_of(d, problem.policy) for d in problem.demands]
    best: int | None = None
    for choice in product(*ways):
        found = _fewest(problem, list(zip(problem.demands, choice, strict=True)), [], best)
        best = found if found is not None else best
    return best


def _fewest(problem: Problem, left: list[tuple[Demand, Option]], slots: list[Slot], best: int | None) -> int | None:
    used = len({s.device.gpu for s in slots})
    if best is not None and used >= best:
        return None
    if not left:
        return used
    (wish, option), rest = left[0], left[1:]
    answer = None
    have = [s for s in slots if s.model == wish.model]
    for where in _homes(problem, option):
        if have and where < have[-1].device.gpu + str(have[-1].device.start):
            continue  # replicas are alike: one order of them is enough
        one, placement = _homes(problem, option)[where]
        device = Device(one.node, one.uuid, *((placement.profile, placement.start) if placement else (None, None)))
        slot = Slot(
            wish.model, device, option.percent, option.memory_mib, option.clients, option.batch, option.instances
        )
        slot = replace(slot, ordinal=sum(s.device == device for s in have))
        if not _fits(problem, [*slots, slot]):
            continue
        following = left if len(have) + 1 < option.replicas else rest
        found = _fewest(problem, following, [*slots, slot], answer if answer is not None else best)
        answer = found if found is not None else answer
    return answer


def _homes(problem: Problem, option: Option) -> dict[str, tuple[Gpu, Placement | None]]:
    homes: dict[str, tuple[Gpu, Placement | None]] = {}
    for one in problem.gpus:
        if one.product == option.product and not option.mig:
            homes[f"{one.uuid}None"] = (one, None)
        for placement in one.placements:
            if placement.profile == option.mig:
                homes[f"{one.uuid}{placement.start}"] = (one, placement)
    return homes


def _fits(problem: Problem, slots: list[Slot]) -> bool:
    gpus = {(g.node, g.uuid): g for g in problem.gpus}
    wishes = {d.model: d for d in problem.demands}
    shares: dict[Device, list[Any]] = {}
    for share in (*slots, *problem.usages):
        shares.setdefault(share.device, []).append(share)
    bad = [
        fault
        for where, users in shares.items()
        if any(isinstance(u, Slot) for u in users)
        for fault in device_faults(gpus[where.node, where.gpu], where, users, wishes)
    ]
    for key, one in gpus.items():
        bad += cut_faults(one, [d for d in shares if (d.node, d.gpu) == key])
    for host in problem.nodes:
        own = [s for s in slots if s.device.node == host.name]
        cpu = sum(millicores_of(gpus[s.device.node, s.device.gpu], s, wishes[s.model]) for s in own)
        if cpu > host.free_cpu_millicores or len(own) > host.free_pods:
            bad.append("host")
    return not bad


@settings(SLOW, max_examples=80)
@given(problems(gpus=2, models=3))
def test_as_few_gpus_as_brute_force_finds(problem: Problem) -> None:
    problem = replace(
        problem,
        gpus=tuple(replace(g, schedulable=True) for g in problem.gpus),
        nodes=tuple(replace(n, taints=()) for n in problem.nodes),
        refusals=(),
        demands=tuple(d for d in problem.demands if options_of(d, problem.policy)),
    )
    if not problem.demands or any(o.replicas > 3 for d in problem.demands for o in options_of(d, PlannerPolicy())):
        return
    fewest, found = brute_force(problem), plan(problem)
    assert (fewest is None) == bool(found.unplaced)
    if fewest is not None:
        assert found.gpus == fewest
        assert found.lower_bound <= fewest
