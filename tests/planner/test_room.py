"""Room for tuning and profiling beside a plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpulet.model.device import Device, Taint
from gpulet.model.plan import Plan, Problem, RoomRequest, Usage
from gpulet.planner import find_room, plan
from tests.planner.worlds import CUT, P, demand, device, gpu, node, point

TUNE = RoomRequest("vision", "tune", 40, 4000)


def problem(*cards: object, **changes: object) -> Problem:
    fields: dict[str, object] = {"nodes": (node(),), "demands": (demand("m", point(50)),)}
    return Problem(gpus=cards, **(fields | changes))  # type: ignore[arg-type]


def found(world: Problem, ask: RoomRequest = TUNE) -> Device | None:
    return find_room(world, plan(world), ask)


def test_never_beside_a_serving_slot() -> None:
    assert found(problem(gpu(0))) is None
    assert found(problem(gpu(0), gpu(1))) == device(1)


def test_not_where_a_replica_still_runs_that_is_about_to_go() -> None:
    world = problem(gpu(0), gpu(1))
    old = plan(world).slots
    gone = replace(world, demands=(), current=old)
    assert old[0].device == device(0)
    assert find_room(gone, Plan((), (), 0, 0, "proven"), TUNE) == device(1)


def test_tuners_share_with_tuners_up_to_the_last_percent() -> None:
    tuner = Usage(device(2), 60, 4000, 1, "elsewhere", "Any", "tune")
    world = problem(gpu(0), gpu(1), gpu(2), usages=(tuner,))
    assert found(world) == device(2)
    assert found(world, replace(TUNE, compute_percent=41)) == device(1)
    assert found(world, replace(TUNE, memory_mib=77_921)) == device(1)


def test_a_measurement_has_no_neighbours() -> None:
    tuner = Usage(device(1), 10, 1000, 1, "vision", "Any", "tune")
    measuring = Usage(device(2), 10, 1000, 1, "vision", "None", "profile")
    world = problem(gpu(0), gpu(1), gpu(2), gpu(3), usages=(tuner, measuring))
    assert found(world, replace(TUNE, purpose="profile")) == device(3)
    assert found(world) == device(1)


@pytest.mark.parametrize("purpose", ["serve", "foreign"])
def test_nobody_elses_device(purpose: str) -> None:
    usage = Usage(device(0), 10, 1000, 1, "vision", "Any", purpose)  # type: ignore[arg-type]
    assert found(problem(gpu(0), demands=(), usages=(usage,))) is None


def test_a_free_instance_of_a_cut_gpu_when_no_whole_one_is_free() -> None:
    serving = demand("m", point(100, mig="3g.40gb"))
    world = problem(gpu(0, whole=False, placements=CUT), demands=(serving,))
    where = found(world)
    assert where is not None
    assert where.profile == "1g.10gb"  # the smallest that holds it
    assert not where.overlaps(plan(world).slots[0].device, {p.profile: p.size for p in CUT})
    assert found(world, replace(TUNE, memory_mib=15_000)) is not None
    larger = found(world, replace(TUNE, memory_mib=15_000))
    assert larger is not None
    assert larger.profile == "2g.20gb"


def test_a_profile_may_be_asked_for() -> None:
    world = problem(gpu(0, placements=CUT), gpu(1, placements=CUT), demands=())
    where = found(world, replace(TUNE, mig="2g.20gb"))
    assert where is not None
    assert where.profile == "2g.20gb"


def test_product_taints_volumes_and_hosts_count() -> None:
    world = problem(gpu(0), demands=())
    assert found(world, replace(TUNE, product="NVIDIA-OTHER")) is None
    assert found(world, replace(TUNE, product=P)) == device(0)
    assert found(replace(world, nodes=(node(taints=(Taint("a", "", "NoSchedule"),)),))) is None
    assert found(world, replace(TUNE, nodes=("gpu-10",))) is None
    assert found(world, replace(TUNE, host_memory_mib=10**9)) is None


def test_host_cpu_of_a_simulated_gpu_is_shared_with_the_plan() -> None:
    cards = (gpu(0, simulated_millicores=1000), gpu(1, simulated_millicores=1000))
    assert found(problem(*cards, nodes=(node(cpu=900),))) == device(1)  # 500 serve, 400 tune
    assert found(problem(*cards, nodes=(node(cpu=899),))) is None
