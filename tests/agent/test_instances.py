"""MIG instances between shares: kept idle, giving way, never a foreign one touched, on simulated GPUs and over NVML."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpulet.agent.instances import KeptInstances
from gpulet.agent.slices import plan_pool
from gpulet.nvidia.source import DeviceError, DeviceSource
from tests.fake_nvml.library import FakeNvml
from tests.nvidia.machines import FakeMachine, FaultyMachine, SimulatedMachine, placement


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["simulated", "fake"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> FaultyMachine:
    if request.param == "simulated":
        return SimulatedMachine(tmp_path)
    return FakeMachine(request.getfixturevalue("fake_nvml"), tmp_path)


@pytest.fixture
def keeper(machine: FaultyMachine, tmp_path: Path, clock: Clock) -> Callable[..., KeptInstances]:
    """An agent's keeper; made again it knows what an agent knows after a restart."""

    def make(source: DeviceSource | None = None, **settings: Any) -> KeptInstances:
        settings = {"idle_s": 60.0, "clock": clock} | settings
        return KeptInstances(source or machine.source(), tmp_path / "instances", **settings)

    return make


def _there(keeper: KeptInstances, uuid: str) -> list[tuple[str, int]]:
    return sorted((i.profile, i.start) for i in keeper.instances(uuid))


@pytest.mark.case("C5")
def test_a_restarted_pod_finds_its_instance(machine: FaultyMachine, keeper: Any, clock: Clock) -> None:
    """Also after the agent was restarted in between."""
    uuid = machine.hopper
    wanted = placement(machine.source(), uuid, "3g.40gb", 4)
    made = keeper().create_instance(uuid, wanted)
    keeper().destroy_instance(uuid, "3g.40gb", 4)
    assert keeper().idle(uuid) == (made,)
    clock.now += 59
    assert keeper().reclaim(uuid, set(), set()) == []
    assert keeper().create_instance(uuid, wanted) == made
    assert keeper().idle(uuid) == ()
    clock.now += 1000
    assert keeper().reclaim(uuid, {("3g.40gb", 4)}, set()) == []
    assert _there(keeper(), uuid) == [("3g.40gb", 4)]


@pytest.mark.case("C19")
def test_what_stays_unused_goes_in_bounded_time(machine: FaultyMachine, keeper: Any, clock: Clock) -> None:
    uuid = machine.hopper
    made = keeper().create_instance(uuid, placement(machine.source(), uuid, "3g.40gb", 4))
    keeper().create_instance(uuid, placement(machine.source(), uuid, "1g.10gb", 0))
    keeper().destroy_instance(uuid, "3g.40gb", 4)
    clock.now += 60
    assert keeper().reclaim(uuid, {("1g.10gb", 0)}, set()) == [made.uuid]
    assert _there(keeper(), uuid) == [("1g.10gb", 0)]
    assert keeper().reclaim(uuid, {("1g.10gb", 0)}, set()) == []


@pytest.mark.case("C19")
def test_unused_instances_give_way_at_once_to_what_overlaps_them(machine: FaultyMachine, keeper: Any) -> None:
    """And only those."""
    uuid, source = machine.hopper, machine.source()
    for profile, start in (("1g.10gb", 0), ("2g.20gb", 2), ("1g.10gb", 4)):
        keeper().create_instance(uuid, placement(source, uuid, profile, start))
        keeper().destroy_instance(uuid, profile, start)
    keeper().create_instance(uuid, placement(source, uuid, "3g.40gb", 0))
    assert _there(keeper(), uuid) == [("1g.10gb", 4), ("3g.40gb", 0)]


@pytest.mark.case("C19", "A27")
def test_unused_instances_give_way_at_once_to_a_whole_gpu(machine: FaultyMachine, keeper: Any) -> None:
    uuid, source = machine.hopper, machine.source()
    for start in (0, 4):
        keeper().create_instance(uuid, placement(source, uuid, "3g.40gb", start))
        keeper().destroy_instance(uuid, "3g.40gb", start)
    keeper().set_exclusive(uuid, True)
    assert keeper().exclusive(uuid)
    assert _there(keeper(), uuid) == []


@pytest.mark.case("C25")
def test_an_instance_in_use_never_gives_way(machine: FaultyMachine, keeper: Any) -> None:
    """Not even part of what is in the way goes when one of it must stay."""
    uuid, source = machine.hopper, machine.source()
    keeper().create_instance(uuid, placement(source, uuid, "2g.20gb", 0))
    keeper().destroy_instance(uuid, "2g.20gb", 0)
    keeper().create_instance(uuid, placement(source, uuid, "2g.20gb", 2))
    before = _there(keeper(), uuid)
    for attempt in (
        lambda: keeper().create_instance(uuid, placement(source, uuid, "4g.40gb", 0)),
        lambda: keeper().set_exclusive(uuid, True),
    ):
        with pytest.raises(DeviceError, match=r"2g\.20gb at slice 2 is in the way and in use by a share"):
            attempt()
        assert _there(keeper(), uuid) == before


@pytest.mark.case("C22")
def test_a_foreign_instance_is_used_where_it_is_and_never_removed(
    machine: FaultyMachine, keeper: Any, clock: Clock
) -> None:
    uuid, source = machine.hopper, machine.source()
    theirs = source.create_instance(uuid, placement(source, uuid, "3g.40gb", 4))
    assert keeper().create_instance(uuid, placement(source, uuid, "3g.40gb", 4)) == theirs
    keeper().destroy_instance(uuid, "3g.40gb", 4)
    clock.now += 1e6
    assert keeper(idle_s=0.0).reclaim(uuid, set(), set()) == []
    assert keeper().idle(uuid) == ()
    for attempt in (
        lambda: keeper().create_instance(uuid, placement(source, uuid, "2g.20gb", 4)),
        lambda: keeper().set_exclusive(uuid, True),
    ):
        with pytest.raises(DeviceError, match=r"3g\.40gb at slice 4 is in the way and not Gpulet's; remove it"):
            attempt()
    assert source.instances(uuid) == (theirs,)


@pytest.mark.case("C22", "C25")
def test_a_foreign_instance_with_processes_is_not_shared(machine: FaultyMachine, keeper: Any) -> None:
    """Ours that were let in before are no reason to refuse the next share of it."""
    uuid, source = machine.hopper, machine.source()
    theirs = source.create_instance(uuid, placement(source, uuid, "3g.40gb", 4))
    _occupy(machine, theirs.uuid, 77)
    with pytest.raises(DeviceError, match="is not Gpulet's and in use: GPUBusy pids=77"):
        keeper().create_instance(uuid, placement(source, uuid, "3g.40gb", 4))
    machine.heal()
    keeper().create_instance(uuid, placement(source, uuid, "3g.40gb", 4))
    _occupy(machine, theirs.uuid, 78)
    assert keeper().create_instance(uuid, placement(source, uuid, "3g.40gb", 4)) == theirs


def _occupy(machine: FaultyMachine, instance: str, pid: int) -> None:
    if isinstance(machine, FakeMachine):
        machine.fake.process(1, pid, instance=1)
    else:
        machine.occupy(instance, pid)


@pytest.mark.case("C10", "C22")
def test_an_admin_may_have_foreign_instances_adopted(machine: FaultyMachine, keeper: Any) -> None:
    """Used ones stay even then."""
    uuid, source = machine.hopper, machine.source()
    theirs = source.create_instance(uuid, placement(source, uuid, "3g.40gb", 4))
    _occupy(machine, theirs.uuid, 77)
    with pytest.raises(DeviceError, match="GPUBusy pids=77"):
        keeper(adopt=True).create_instance(uuid, placement(source, uuid, "2g.20gb", 4))
    machine.heal()
    keeper(adopt=True).create_instance(uuid, placement(source, uuid, "2g.20gb", 4))
    assert _there(keeper(), uuid) == [("2g.20gb", 4)]


@pytest.mark.case("F1", "F2")
def test_after_a_boot_nothing_that_was_kept_counts(machine: FaultyMachine, keeper: Any, clock: Clock) -> None:
    """An instance at the same place is then somebody else's."""
    uuid = machine.hopper
    wanted = placement(machine.source(), uuid, "3g.40gb", 4)
    made = keeper().create_instance(uuid, wanted)
    machine.boot()
    theirs = machine.source().create_instance(uuid, wanted)
    assert theirs.uuid != made.uuid
    keeper().destroy_instance(uuid, "3g.40gb", 4)
    clock.now += 1e6
    assert keeper().reclaim(uuid, set(), set()) == []
    assert machine.source().instances(uuid) == (theirs,)


@pytest.mark.case("C22")
def test_an_instance_that_somebody_made_again_in_our_place_is_theirs(machine: FaultyMachine, keeper: Any) -> None:
    uuid, source = machine.hopper, machine.source()
    wanted = placement(source, uuid, "3g.40gb", 4)
    keeper().create_instance(uuid, wanted)
    source.destroy_instance(uuid, "3g.40gb", 4)
    theirs = source.create_instance(uuid, wanted)
    keeper(idle_s=0.0).destroy_instance(uuid, "3g.40gb", 4)
    assert source.instances(uuid) == (theirs,)


@pytest.mark.case("F3")
def test_one_that_counts_as_used_but_is_held_by_nobody_goes(machine: FaultyMachine, keeper: Any, clock: Clock) -> None:
    """The share's file was lost: it is unused from the first look on, unless a daemon still serves it."""
    uuid = machine.hopper
    made = keeper().create_instance(uuid, placement(machine.source(), uuid, "3g.40gb", 4))
    assert keeper().reclaim(uuid, set(), {made.uuid}) == []
    clock.now += 1000
    assert keeper().reclaim(uuid, set(), set()) == []
    clock.now += 60
    assert keeper().reclaim(uuid, set(), set()) == [made.uuid]
    assert _there(keeper(), uuid) == []


@pytest.mark.case("C21")
def test_what_was_written_down_and_never_made_is_forgotten(machine: FaultyMachine, keeper: Any, tmp_path: Path) -> None:
    uuid = machine.hopper
    wanted = placement(machine.source(), uuid, "3g.40gb", 4)
    machine.fail_compute_instances()
    with pytest.raises(DeviceError):
        keeper().create_instance(uuid, wanted)
    assert len(json.loads((tmp_path / "instances" / f"{uuid}.json").read_text())["instances"]) == 1
    keeper().reclaim(uuid, set(), set())
    assert list((tmp_path / "instances").glob("*")) == []


def test_a_file_that_cannot_be_read_makes_instances_foreign(
    machine: FaultyMachine, keeper: Any, tmp_path: Path
) -> None:
    """Better kept too long than removed under somebody."""
    uuid = machine.hopper
    keeper().create_instance(uuid, placement(machine.source(), uuid, "3g.40gb", 4))
    (tmp_path / "instances" / f"{uuid}.json").write_text("{")
    keeper(idle_s=0.0).reclaim(uuid, set(), set())
    assert _there(keeper(), uuid) == [("3g.40gb", 4)]


@pytest.mark.case("C1")
def test_a_full_disk_removes_at_once_what_it_cannot_remember(
    machine: FaultyMachine, keeper: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A share must be able to end."""
    uuid = machine.hopper
    keeper().create_instance(uuid, placement(machine.source(), uuid, "3g.40gb", 4))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "instances")

    monkeypatch.setattr("gpulet.agent.instances.write_atomically", full)
    keeper().destroy_instance(uuid, "3g.40gb", 4)
    assert _there(keeper(), uuid) == []


@pytest.mark.case("C14", "C23", "C10")
def test_after_a_change_of_mode_the_gpu_is_published_anew(machine: FaultyMachine) -> None:
    """By the agent itself, in the pool's next generation, with nothing of the old mode left."""

    def plan(existing: list[dict[str, Any]]) -> list[dict[str, Any]]:
        gpu = next(gpu for gpu in machine.source().gpus() if gpu.uuid == machine.ampere)
        return plan_pool("node1", gpu, existing, source="nvml", open_to_all=False, parent={})

    def devices(slices: list[dict[str, Any]]) -> list[str]:
        return [device["name"] for found in slices for device in found["spec"].get("devices", ())]

    whole = plan([])
    assert devices(whole) == ["gpu-0"]
    assert plan(whole) == []
    machine.cut_ampere()
    cut = plan(whole)
    assert {found["spec"]["pool"]["generation"] for found in cut} == {2}
    assert len(devices(cut)) == 18 and all(name.startswith("gpu-0-mig-") for name in devices(cut))


@pytest.mark.case("A25")
def test_a_removal_that_was_cut_short_is_finished(fake_nvml: FakeNvml, keeper: Any, tmp_path: Path) -> None:
    """The agent died when the compute instance was gone and the GPU instance was not."""
    machine = FakeMachine(fake_nvml, tmp_path)
    uuid = machine.hopper
    make = functools.partial(keeper, machine.source(), idle_s=0.0)
    for finish in (
        lambda: make().destroy_instance(uuid, "3g.40gb", 4),
        lambda: make().reclaim(uuid, set(), set()),
    ):
        make().create_instance(uuid, placement(machine.source(), uuid, "3g.40gb", 4))
        fake_nvml.fail("nvmlGpuInstanceDestroy", 999)
        with pytest.raises(DeviceError):
            make().destroy_instance(uuid, "3g.40gb", 4)
        fake_nvml.heal()
        assert [i.uuid for i in make().instances(uuid)] == [""]
        finish()
        assert fake_nvml.instances(1) == 0
        assert list((tmp_path / "instances").glob("*")) == []
