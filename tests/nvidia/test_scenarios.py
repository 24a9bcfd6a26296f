"""What the node code expects of GPUs, whoever provides them: the same suite on simulated GPUs, over the driver's
library (faked), and on the real GPU that the variable GPULET_TEST_GPU names (then the library is not faked).
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.nvidia.machines import (
    REAL_GPU,
    FakeMachine,
    FaultyMachine,
    Machine,
    RealMachine,
    SimulatedMachine,
    placement,
)

from gpulet.nvidia.source import DeviceError, DeviceSource, PhysicalGpu

FAULTY = ["simulated", *([] if REAL_GPU else ["fake"])]
HALVES = [("3g.40gb", 0), ("3g.40gb", 4)]


def _make(name: str, folder: Path, request: pytest.FixtureRequest) -> FaultyMachine:
    if name == "simulated":
        return SimulatedMachine(folder)
    return FakeMachine(request.getfixturevalue("fake_nvml"), folder)


@pytest.fixture(params=FAULTY)
def faulty(request: pytest.FixtureRequest, tmp_path: Path) -> FaultyMachine:
    return _make(request.param, tmp_path, request)


@pytest.fixture(params=[*FAULTY, *(["gpu"] if REAL_GPU else [])])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Machine]:
    if request.param == "gpu":
        real = RealMachine()
        yield real
        real.restore()
    else:
        yield _make(request.param, tmp_path, request)


def _gpu(source: DeviceSource, uuid: str) -> PhysicalGpu:
    return next(gpu for gpu in source.gpus() if gpu.uuid == uuid)


def _half(source: DeviceSource, uuid: str) -> tuple[str, int, int]:
    """Profile, start and size of the first placement that takes half of the GPU."""
    gpu = _gpu(source, uuid)
    found = next(p for p in gpu.placements if p.size * 2 == gpu.memory_slices)
    return found.profile, found.start, found.size


@pytest.mark.case("C9")
def test_hopper_offers_itself_and_its_placements(machine: Machine) -> None:
    """Uncut, without an instance, and cut with none left."""
    source = machine.source()
    gpu = _gpu(source, machine.hopper)
    assert gpu.whole and gpu.placements and gpu.health == "healthy"
    assert max(p.start + p.size for p in gpu.placements) == gpu.memory_slices
    assert max(p.compute_slices for p in gpu.placements) == gpu.compute_slices
    assert all(0 < p.memory_mib < gpu.memory_mib + 1024 and p.clients >= 1 for p in gpu.placements)
    half = next(p for p in gpu.placements if p.size * 2 == gpu.memory_slices)
    source.create_instance(gpu.uuid, half)
    source.destroy_instance(gpu.uuid, half.profile, half.start)
    again = _gpu(machine.source(), gpu.uuid)
    assert (again.whole, set(again.placements)) == (True, set(gpu.placements))


@pytest.mark.case("C10", "C6")
def test_ampere_offers_what_its_mode_allows(faulty: FaultyMachine) -> None:
    assert (_gpu(faulty.source(), faulty.ampere).whole, _gpu(faulty.source(), faulty.ampere).placements) == (True, ())
    faulty.cut_ampere()
    gpu = _gpu(faulty.source(), faulty.ampere)
    assert (gpu.whole, len(gpu.placements), gpu.health) == (False, 18, "healthy")


@pytest.mark.case("N1", "N2")
def test_one_lost_gpu_hides_no_other_and_its_return_is_noticed(faulty: FaultyMachine) -> None:
    source = faulty.source()
    well, _ = source.gpus()
    faulty.lose(faulty.ampere)
    for _ in range(2):
        lost, other = source.gpus()
        assert (lost.uuid, lost.health, other.health) == (faulty.ampere, "lost", "healthy")
        assert lost.health_reason
        assert lost == replace(well, health="lost", health_reason=lost.health_reason)
    with pytest.raises(DeviceError, match=faulty.ampere):
        source.instances(faulty.ampere)
    with pytest.raises(DeviceError, match=faulty.ampere):
        source.set_exclusive(faulty.ampere, True)
    assert source.instances(faulty.hopper) == ()
    faulty.heal()
    assert [g.health for g in source.gpus()] == ["healthy", "healthy"]


@pytest.mark.case("N2")
def test_a_degraded_gpu_goes_on_and_recovers(faulty: FaultyMachine) -> None:
    source = faulty.source()
    faulty.degrade(faulty.hopper)
    gpu = _gpu(source, faulty.hopper)
    assert gpu.health == "degraded" and gpu.health_reason
    source.create_instance(faulty.hopper, placement(source, faulty.hopper, "3g.40gb", 0))
    assert len(source.instances(faulty.hopper)) == 1
    faulty.heal()
    assert _gpu(source, faulty.hopper).health == "healthy"


@pytest.mark.case("C22", "C5")
def test_instance_is_made_at_its_place_found_again_and_removed(machine: Machine) -> None:
    """A second, identical call touches nothing, from a restarted agent too; what was removed comes back as another."""
    source, uuid = machine.source(), machine.hopper
    profile, start, size = _half(source, uuid)
    wanted = placement(source, uuid, profile, start)
    made = source.create_instance(uuid, wanted)
    assert (made.profile, made.start, made.size) == (profile, start, size)
    assert made.uuid.startswith("MIG-")
    assert machine.source().instances(uuid) == (made,)
    assert machine.source().create_instance(uuid, wanted) == made
    for _ in range(2):
        source.destroy_instance(uuid, profile, start)
        assert source.instances(uuid) == ()
    assert source.create_instance(uuid, wanted).uuid != made.uuid
    source.destroy_instance(uuid, profile, start)


def test_every_placement_can_be_made(machine: Machine) -> None:
    source, uuid = machine.source(), machine.hopper
    for wanted in _gpu(source, uuid).placements:
        made = source.create_instance(uuid, wanted)
        assert [(i.profile, i.start, i.size) for i in source.instances(uuid)] == [
            (wanted.profile, wanted.start, wanted.size)
        ]
        source.destroy_instance(uuid, made.profile, made.start)


@pytest.mark.parametrize(("profile", "start"), [("3g.40gb", 4), ("4g.40gb", 0), ("7g.80gb", 0), ("1g.10gb", 5)])
def test_an_overlapping_placement_is_refused_and_changes_nothing(
    faulty: FaultyMachine, profile: str, start: int
) -> None:
    source, uuid = faulty.source(), faulty.hopper
    for there in (("2g.20gb", 4), ("1g.10gb", 0)):
        source.create_instance(uuid, placement(source, uuid, *there))
    before = source.instances(uuid)
    with pytest.raises(DeviceError, match=f"{profile} at slice {start}"):
        source.create_instance(uuid, placement(source, uuid, profile, start))
    assert source.instances(uuid) == before


@pytest.mark.case("E2")
def test_places_beside_each_other_are_held_together(faulty: FaultyMachine) -> None:
    """3g at 4 with 2g at 0 and 2: a greedy driver that chose places itself could have blocked the 3g."""
    source, uuid = faulty.source(), faulty.hopper
    for wanted in (("2g.20gb", 0), ("2g.20gb", 2), ("3g.40gb", 4)):
        source.create_instance(uuid, placement(source, uuid, *wanted))
    assert sorted((i.profile, i.start) for i in source.instances(uuid)) == [
        ("2g.20gb", 0),
        ("2g.20gb", 2),
        ("3g.40gb", 4),
    ]


@pytest.mark.case("C21", "C17", "C7")
def test_a_failed_compute_instance_leaves_nothing(faulty: FaultyMachine) -> None:
    source, uuid = faulty.source(), faulty.hopper
    wanted = placement(source, uuid, "3g.40gb", 0)
    faulty.fail_compute_instances()
    with pytest.raises(DeviceError, match=uuid):
        source.create_instance(uuid, wanted)
    assert source.instances(uuid) == ()
    faulty.heal()
    assert source.create_instance(uuid, wanted).uuid


@pytest.mark.case("A15", "A26")
def test_compute_mode_is_exclusive_and_back(machine: Machine) -> None:
    source, uuid = machine.source(), machine.hopper
    for wanted in (True, True, False, False):
        source.set_exclusive(uuid, wanted)
        assert source.exclusive(uuid) == wanted
        assert machine.source().exclusive(uuid) == wanted


@pytest.mark.case("A27")
def test_hopper_goes_from_whole_to_cut_and_back(machine: Machine) -> None:
    """Both directions, and never over an instance that is left."""
    source, uuid = machine.source(), machine.hopper
    profile, start, _ = _half(source, uuid)
    wanted = placement(source, uuid, profile, start)
    source.set_exclusive(uuid, True)
    source.set_exclusive(uuid, False)
    source.create_instance(uuid, wanted)
    with pytest.raises(DeviceError, match="instances are left on it"):
        source.set_exclusive(uuid, True)
    assert len(source.instances(uuid)) == 1
    source.set_exclusive(uuid, False)
    source.destroy_instance(uuid, profile, start)
    source.set_exclusive(uuid, True)
    assert source.exclusive(uuid)
    assert source.instances(uuid) == ()
    source.set_exclusive(uuid, False)


@pytest.mark.case("F1", "F2")
def test_a_boot_loses_instances_and_modes_and_shows_by_its_id(faulty: FaultyMachine) -> None:
    """Ampere's MIG mode stays, Hopper's does not; the instance is made again, with another name."""
    faulty.cut_ampere()
    source = faulty.source()
    before = source.boot_id()
    wanted = placement(source, faulty.hopper, "3g.40gb", 4)
    made = source.create_instance(faulty.hopper, wanted)
    source.create_instance(faulty.ampere, placement(source, faulty.ampere, "1g.10gb", 0))
    assert faulty.source().boot_id() == before
    faulty.boot()
    source = faulty.source()
    assert source.boot_id() != before
    assert [source.instances(uuid) for uuid in (faulty.ampere, faulty.hopper)] == [(), ()]
    assert not _gpu(source, faulty.ampere).whole
    assert source.create_instance(faulty.hopper, wanted).uuid != made.uuid


@pytest.mark.case("A15")
def test_a_boot_loses_the_compute_mode(faulty: FaultyMachine) -> None:
    source = faulty.source()
    source.set_exclusive(faulty.hopper, True)
    faulty.boot()
    assert not faulty.source().exclusive(faulty.hopper)


@pytest.mark.case("D6", "C3")
def test_processes_are_told_and_stop_a_change_of_mode(faulty: FaultyMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names them; nothing was changed, and it works when they are gone."""
    monkeypatch.setattr("gpulet.nvidia.nvml_mode._PAUSE_S", 0.01)
    source, uuid = faulty.source(), faulty.hopper
    assert source.processes(uuid) == ()
    faulty.occupy(uuid, 4711, 12)
    assert [p.pid for p in source.processes(uuid)] == [12, 4711]
    assert source.processes(faulty.ampere) == ()
    wanted = placement(source, uuid, "3g.40gb", 0)
    with pytest.raises(DeviceError, match=r"GPUBusy pids=12,4711"):
        source.create_instance(uuid, wanted)
    gpu = _gpu(source, uuid)
    assert gpu.health == "healthy", "no mode is left waiting for a reset"
    assert gpu.mig_mode is not None and not gpu.mig_mode.current
    faulty.heal()
    assert source.create_instance(uuid, wanted).uuid


@pytest.mark.case("C6")
def test_without_permission_no_mode_is_changed(faulty: FaultyMachine) -> None:
    """A GPU then offers what its mode allows, and the error says what to allow or to do by hand."""
    source = faulty.source(mode_changes="Never")
    hopper = _gpu(source, faulty.hopper)
    assert (hopper.whole, hopper.placements) == (True, ())
    wanted = placement(faulty.source(), faulty.hopper, "3g.40gb", 0)
    with pytest.raises(DeviceError, match="MIG mode must be on, and migModeChanges is Never"):
        source.create_instance(faulty.hopper, wanted)
    ampere = faulty.source(mode_changes="WithReset")
    with pytest.raises(DeviceError, match="MIG mode must be on, and migModeChanges is WithoutReset"):
        faulty.source().create_instance(faulty.ampere, placement(ampere, faulty.ampere, "3g.40gb", 0))
    faulty.cut_ampere()
    with pytest.raises(DeviceError, match="MIG mode must be off, and migModeChanges is WithoutReset"):
        faulty.source().set_exclusive(faulty.ampere, True)


@pytest.mark.case("C3", "A27")
def test_ampere_is_reset_only_with_permission_and_when_idle(
    faulty: FaultyMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpulet.nvidia.nvml_mode._PAUSE_S", 0.01)
    source, uuid = faulty.source(mode_changes="WithReset"), faulty.ampere
    gpu = _gpu(source, uuid)
    assert gpu.whole and len(gpu.placements) == 18
    wanted = placement(source, uuid, "3g.40gb", 4)
    faulty.occupy(uuid, 99)
    with pytest.raises(DeviceError, match="GPUBusy pids=99"):
        source.create_instance(uuid, wanted)
    faulty.heal()
    assert source.create_instance(uuid, wanted).uuid
    source.destroy_instance(uuid, "3g.40gb", 4)
    source.set_exclusive(uuid, True)
    assert source.exclusive(uuid)
