"""What is NVML's own, through nvidia-ml-py and ctypes, over the driver's library faked: names, errors, health."""

import os
import subprocess
import sys
from pathlib import Path

import pynvml as nv
import pytest
from tests.fake_nvml.library import FakeNvml
from tests.nvidia.machines import REAL_GPU, placement

from gpulet.nvidia import nvml_mig
from gpulet.nvidia.nvml import NvmlSource
from gpulet.nvidia.source import DeviceError, MigMode
from gpulet.nvidia.tables import PRODUCTS

pytestmark = pytest.mark.skipif(bool(REAL_GPU), reason="the real library is loaded in this process")

NO_PERMISSION, UNSUPPORTED, FUNCTION_NOT_FOUND = 4, 3, 13
LOST, RESET_REQUIRED, IN_USE, UNKNOWN, DRIVER_NOT_LOADED, TIMEOUT = 15, 16, 19, 999, 9, 10
XID = 8
A100, H100 = 0, 1
RESET, REBOOT, DRAIN_AND_RESET = 1, 2, 4


@pytest.fixture
def source(fake_nvml: FakeNvml) -> NvmlSource:
    return NvmlSource(reopen_s=0.0)


def _uuids(source: NvmlSource) -> list[str]:
    return [gpu.uuid for gpu in source.gpus()]


@pytest.mark.case("A11", "A17", "D19", "A3")
def test_inventory_offers_what_can_be_shared(fake_nvml: FakeNvml, caplog: pytest.LogCaptureFixture) -> None:
    """Too old and integrated GPUs are left out, said once; memory is what the driver leaves, in whole MiB."""
    fake_nvml.machine("p100", "h100", "orin", "t4")
    source = NvmlSource()
    for _ in range(2):
        h100, t4 = source.gpus()
    assert (h100.product, h100.architecture, h100.index) == ("NVIDIA-H100-80GB-HBM3", "Hopper", 1)
    assert h100.memory_mib == 81559 - 601
    assert (h100.memory_slices, h100.compute_slices, h100.millicores, h100.driver) == (8, 7, 0, "580.65.06")
    assert (t4.product, t4.whole, t4.placements, t4.mig_mode, t4.health) == ("Tesla-T4", True, (), None, "healthy")
    said = [r.getMessage() for r in caplog.records]
    assert len(said) == 2 and "older than Volta" in said[0] and "integrated" in said[1]
    fake_nvml.machine("p100")
    assert NvmlSource().gpus() == (), "no GPU that can be shared is a state, not an error"
    fake_nvml.machine()
    assert NvmlSource().gpus() == ()


@pytest.mark.case("B10", "A13")
def test_what_mps_can_do_follows_driver_and_product(fake_nvml: FakeNvml, caplog: pytest.LogCaptureFixture) -> None:
    """Instances take clients in proportion to their compute, and at least one."""
    fake_nvml.machine("h100", "t4")
    fake_nvml.driver("620.10", 13020)
    h100, t4 = NvmlSource().gpus()
    assert (h100.clients, t4.clients, h100.driver) == (60, 21, "620.10")
    assert {(p.profile, p.clients) for p in h100.placements if p.start == 0} >= {("3g.40gb", 25), ("1g.10gb", 8)}
    fake_nvml.driver("470.1", 11040)
    assert NvmlSource().gpus() == ()
    assert "need 11.5; install a newer driver" in caplog.text


def test_placements_and_names_are_the_same_with_mig_off_and_on(fake_nvml: FakeNvml, source: NvmlSource) -> None:
    """The driver may not tell names while MIG is off; they are made as NVIDIA makes them."""
    off = source.gpus()[H100].placements
    fake_nvml.set(H100, mig=1, pending=1)
    assert source.gpus()[H100].placements == off
    assert set(off) == set(PRODUCTS["NVIDIA-H100-80GB-HBM3"].placements)


@pytest.mark.parametrize(
    ("total_gib", "names"),
    [
        (39.6, ["1g.5gb", "1g.10gb", "3g.20gb", "7g.40gb"]),
        (79.6, ["1g.10gb", "1g.20gb", "3g.40gb", "7g.80gb"]),
        (93.6, ["1g.12gb", "1g.24gb", "3g.47gb", "7g.94gb"]),
        (95.6, ["1g.12gb", "1g.24gb", "3g.48gb", "7g.96gb"]),
        (140.4, ["1g.18gb", "1g.35gb", "3g.71gb", "7g.141gb"]),
        (179.1, ["1g.23gb", "1g.45gb", "3g.90gb", "7g.180gb"]),
        (185.1, ["1g.23gb", "1g.47gb", "3g.93gb", "7g.186gb"]),
        (268.6, ["1g.34gb", "1g.67gb", "3g.135gb", "7g.269gb"]),
        (277.6, ["1g.35gb", "1g.70gb", "3g.139gb", "7g.278gb"]),
    ],
)
def test_names_that_the_driver_does_not_tell_are_nvidias(total_gib: float, names: list[str]) -> None:
    """A100-40 to GB300, as NVIDIA's MIG user guide and mig-parted's configuration name them."""
    total = int(total_gib * (1 << 30))
    # An instance has somewhat less than its eighths: the driver keeps some for itself.
    sizes = [(1, 1), (1, 2), (3, 4), (7, 8)]
    made = [nvml_mig.profile_name(slices, int(total / 8 * eighths * 0.98) >> 20, total) for slices, eighths in sizes]
    assert made == names


def test_no_grid_is_taken_for_granted(fake_nvml: FakeNvml) -> None:
    """A grid of 12 memory and 4 compute slices, whose variants (+me, -me) are not offered."""
    (uuid,) = fake_nvml.machine("pro6000")
    source = NvmlSource()
    fake_nvml.set(0, mig=1, pending=1)
    (gpu,) = source.gpus()
    assert (gpu.memory_slices, gpu.compute_slices) == (12, 4)
    starts = {name: sorted(p.start for p in gpu.placements if p.profile == name) for name in ("1g.24gb", "2g.48gb")}
    assert starts == {"1g.24gb": [0, 3, 6, 9], "2g.48gb": [0, 6]}
    assert len(gpu.placements) == 7
    made = source.create_instance(uuid, placement(source, uuid, "2g.48gb", 6))
    assert (made.start, made.size) == (6, 6)


def test_tables_are_asked_only_where_the_driver_does_not_tell(fake_nvml: FakeNvml) -> None:
    """An A100 whose driver is silent while MIG is off; once on, what it tells counts."""
    source = NvmlSource(mode_changes="WithReset")
    uuid = _uuids(source)[A100]
    assert source.gpus()[A100].placements == PRODUCTS["NVIDIA-A100-SXM4-80GB"].placements
    assert source.create_instance(uuid, placement(source, uuid, "4g.40gb", 0)).profile == "4g.40gb"
    assert {p.memory_mib for p in source.gpus()[A100].placements if p.profile == "1g.10gb"} == {9728}


def test_foreign_instances_are_seen_whatever_their_profile(fake_nvml: FakeNvml, source: NvmlSource) -> None:
    """A variant that we never offer, half-made ones and divided ones: all are in the way."""
    fake_nvml.set(H100, mig=1, pending=1)
    uuid = _uuids(source)[H100]
    handle = nv.nvmlDeviceGetHandleByUUID(uuid)
    known = {p.name: p for p in nvml_mig.profiles(handle)}
    media = nvml_mig.create_gpu_instance(handle, known["1g.10gb+me"], 6, 1)
    nvml_mig.create_compute_instance(media)
    nvml_mig.create_gpu_instance(handle, known["1g.10gb"], 0, 1)
    divided = nvml_mig.create_gpu_instance(handle, known["2g.20gb"], 2, 2)
    for _ in range(2):
        nv.nvmlGpuInstanceCreateComputeInstance(divided, 0)
    found = {(i.profile, i.start): bool(i.uuid) for i in source.instances(uuid)}
    assert found == {("1g.10gb+me", 6): True, ("1g.10gb", 0): False, ("2g.20gb", 2): False}
    with pytest.raises(DeviceError, match="divided into compute instances that Gpulet did not make"):
        source.create_instance(uuid, placement(source, uuid, "2g.20gb", 2))


@pytest.mark.case("C21")
def test_an_orphan_gpu_instance_is_completed(fake_nvml: FakeNvml, source: NvmlSource) -> None:
    """The agent died between the two halves, or neither half could be undone."""
    uuid = _uuids(source)[H100]
    wanted = placement(source, uuid, "3g.40gb", 0)
    fake_nvml.fail("nvmlGpuInstanceCreateComputeInstance", UNKNOWN)
    fake_nvml.fail("nvmlGpuInstanceDestroy", UNKNOWN)
    with pytest.raises(DeviceError):
        source.create_instance(uuid, wanted)
    fake_nvml.heal()
    assert fake_nvml.instances(H100) == 1
    assert source.create_instance(uuid, wanted).uuid
    assert fake_nvml.instances(H100) == 1


def test_a_destroy_that_is_in_use_for_a_moment_is_repeated(
    fake_nvml: FakeNvml, source: NvmlSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpulet.nvidia.nvml_mig._PAUSE_S", 0.01)
    uuid = _uuids(source)[H100]
    source.create_instance(uuid, placement(source, uuid, "3g.40gb", 0))
    fake_nvml.fail("nvmlGpuInstanceDestroy", IN_USE, times=2)
    source.destroy_instance(uuid, "3g.40gb", 0)
    assert fake_nvml.instances(H100) == 0


@pytest.mark.case("C25", "C3")
def test_an_instance_in_use_is_never_destroyed(
    fake_nvml: FakeNvml, source: NvmlSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpulet.nvidia.nvml_mig._PAUSE_S", 0.01)
    uuid = _uuids(source)[H100]
    made = source.create_instance(uuid, placement(source, uuid, "3g.40gb", 0))
    fake_nvml.process(H100, 4242, instance=1)
    with pytest.raises(DeviceError, match="GPUBusy pids=4242"):
        source.destroy_instance(uuid, "3g.40gb", 0)
    assert source.instances(uuid) == (made,)


@pytest.mark.case("C7", "C6")
def test_mig_mode_is_looked_at_after_it_was_set(fake_nvml: FakeNvml, source: NvmlSource) -> None:
    """The call succeeds, the mode only waits for a reset: said, and not tried again and again."""
    uuid = _uuids(source)[H100]
    wanted = placement(source, uuid, "3g.40gb", 0)
    fake_nvml.set(H100, resettable=0)
    with pytest.raises(DeviceError, match="RebootRequired: MIG mode on needs a reset"):
        source.create_instance(uuid, wanted)
    gpu = source.gpus()[H100]
    assert (gpu.mig_mode, gpu.health) == (MigMode(current=False, pending=True), "degraded")
    assert "RebootRequired" in gpu.health_reason
    fake_nvml.fail("nvmlDeviceSetMigMode", UNKNOWN)
    with pytest.raises(DeviceError, match="RebootRequired: MIG mode on waits for a reset"):
        source.create_instance(uuid, wanted)
    fake_nvml.boot()
    assert source.gpus()[H100].health == "healthy"


@pytest.mark.case("C6")
def test_a_mode_that_waits_for_a_reset_keeps_new_shares_away(fake_nvml: FakeNvml, source: NvmlSource) -> None:
    fake_nvml.set(A100, pending=1)
    assert [g.health for g in source.gpus()] == ["degraded", "healthy"]
    fake_nvml.reset(A100)
    assert [(g.health, g.whole) for g in source.gpus()] == [("healthy", False), ("healthy", True)]


@pytest.mark.parametrize("code", [LOST, UNKNOWN, RESET_REQUIRED])
@pytest.mark.case("N1")
def test_whatever_a_broken_gpu_answers_the_others_go_on(fake_nvml: FakeNvml, source: NvmlSource, code: int) -> None:
    source.gpus()
    fake_nvml.fail("*", code, gpu=A100)
    assert [g.health for g in source.gpus()] == ["lost", "healthy"]


@pytest.mark.case("N1")
def test_a_gpu_that_is_broken_when_the_agent_starts_hides_no_other(fake_nvml: FakeNvml) -> None:
    """Nothing is known of it then, so it cannot be listed; it is as soon as it answers."""
    fake_nvml.fail("*", LOST, gpu=A100)
    source = NvmlSource(reopen_s=0.0)
    assert [g.index for g in source.gpus()] == [H100]
    fake_nvml.heal()
    assert [g.index for g in source.gpus()] == [A100, H100]


@pytest.mark.case("N1", "F6")
def test_a_gpu_that_fell_off_the_bus_is_lost_and_the_others_keep_their_names(
    fake_nvml: FakeNvml, source: NvmlSource
) -> None:
    """NVML's indices move up; ours do not, for devices are named by them."""
    source.gpus()
    fake_nvml.set(A100, absent=1)
    lost, other = source.gpus()
    assert (lost.health, lost.index, other.health, other.index) == ("lost", A100, "healthy", H100)
    assert "no longer on the bus" in lost.health_reason


def test_a_gpu_that_refuses_one_question_is_degraded_and_stays(fake_nvml: FakeNvml, source: NvmlSource) -> None:
    before = source.gpus()
    fake_nvml.fail("nvmlDeviceGetMemoryInfo_v2", TIMEOUT, gpu=A100)
    gpu = source.gpus()[A100]
    assert (gpu.health, gpu.memory_mib) == ("degraded", before[A100].memory_mib)
    assert "Timeout" in gpu.health_reason
    fake_nvml.heal()
    assert source.gpus() == before


def test_an_older_driver_lacks_functions_and_works(fake_nvml: FakeNvml) -> None:
    """No recovery action, no memory v2, no remapping, no clock reasons: unknown is not zero, and no fault."""
    for function in ("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetRemappedRows", "nvmlDeviceGetFieldValues"):
        fake_nvml.fail(function, FUNCTION_NOT_FOUND)
    for function in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetTotalEccErrors"):
        fake_nvml.fail(function, UNSUPPORTED)
    gpus = NvmlSource().gpus()
    assert [g.health for g in gpus] == ["healthy", "healthy"]
    assert gpus[H100].memory_mib == 81559


@pytest.mark.parametrize(
    ("signs", "health", "said"),
    [
        ({"remap_pending": 1}, "degraded", "row is to be remapped"),
        ({"remap_failed": 1}, "lost", "replace the GPU"),
        ({"remap_pending": 1, "remap_failed": 1}, "lost", "replace the GPU"),
        ({"ecc": 2, "tells_recovery": 0}, "degraded", "2 uncorrectable memory errors"),
        ({"ecc": 2}, "healthy", ""),
        ({"recovery": RESET}, "lost", "reset the GPU"),
        ({"recovery": REBOOT}, "lost", "reboot the node"),
        ({"recovery": DRAIN_AND_RESET}, "degraded", "drain the GPU"),
        ({"clocks": 0x40}, "degraded", "heat or power"),
        ({"clocks": 0x80}, "degraded", "heat or power"),
        ({"clocks": 0x1 | 0x4 | 0x20}, "healthy", ""),
    ],
)
@pytest.mark.case("N1")
def test_signs_of_trouble(fake_nvml: FakeNvml, signs: dict[str, int], health: str, said: str) -> None:
    """Of one GPU alone; an idle clock, a power cap or a soft limit is no trouble."""
    source = NvmlSource()
    fake_nvml.set(H100, **signs)
    other, gpu = source.gpus()
    assert (other.health, gpu.health) == ("healthy", health)
    assert said in gpu.health_reason
    fake_nvml.set(H100, **{**dict.fromkeys(signs, 0), "tells_recovery": 1})
    assert [g.health for g in source.gpus()] == ["healthy", "healthy"]


def test_older_gpus_retire_pages(fake_nvml: FakeNvml) -> None:
    fake_nvml.machine("t4")
    fake_nvml.set(0, retired_pending=1)
    (gpu,) = NvmlSource().gpus()
    assert (gpu.health, "page is to be retired" in gpu.health_reason) == ("degraded", True)


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 68, 109, 154])
@pytest.mark.case("N1")
def test_errors_of_programs_are_not_the_gpus(fake_nvml: FakeNvml, source: NvmlSource, xid: int) -> None:
    source.gpus()
    fake_nvml.event(H100, XID, xid)
    assert [g.health for g in source.gpus()] == ["healthy", "healthy"]


@pytest.mark.parametrize(
    ("xid", "health"), [(79, "lost"), (48, "lost"), (119, "lost"), (63, "degraded"), (94, "degraded")]
)
@pytest.mark.case("N1", "N2")
def test_a_fault_is_its_gpus_alone_until_the_driver_says_it_is_over(fake_nvml: FakeNvml, xid: int, health: str) -> None:
    now = [0.0]
    source = NvmlSource(clock=lambda: now[0], reopen_s=1e9)
    source.gpus()
    fake_nvml.event(H100, XID, xid)
    assert [g.health for g in source.gpus()] == ["healthy", health]
    assert f"Xid {xid}" in source.gpus()[H100].health_reason
    fake_nvml.set(H100, recovery=RESET)
    now[0] = 1000.0
    assert source.gpus()[H100].health == "lost", "a reset is still to be made"
    fake_nvml.set(H100, recovery=0)
    assert source.gpus()[H100].health == "healthy"


@pytest.mark.case("N2")
def test_with_an_older_driver_a_fault_is_over_when_the_gpu_came_back(fake_nvml: FakeNvml) -> None:
    now = [0.0]
    source = NvmlSource(clock=lambda: now[0], reopen_s=30.0)
    fake_nvml.set(H100, tells_recovery=0)
    source.gpus()
    fake_nvml.event(H100, XID, 79)
    now[0] = 1000.0
    assert source.gpus()[H100].health == "lost"
    fake_nvml.fail("*", LOST, gpu=H100)
    for _ in range(2):
        assert source.gpus()[H100].health == "lost"
    fake_nvml.reset(H100)
    fake_nvml.heal()
    now[0] = 1029.0
    assert source.gpus()[H100].health == "lost", "the session is older than the GPU's return, and too young to renew"
    now[0] = 1030.0
    assert source.gpus()[H100].health == "healthy"


def test_an_admin_may_ignore_more_errors(fake_nvml: FakeNvml) -> None:
    source = NvmlSource(ignored_xids=[119])
    source.gpus()
    fake_nvml.event(H100, XID, 119)
    assert source.gpus()[H100].health == "healthy"


@pytest.mark.case("N1")
def test_an_error_is_heard_of_a_gpu_that_is_lost_by_then(fake_nvml: FakeNvml, source: NvmlSource) -> None:
    source.gpus()
    fake_nvml.event(H100, XID, 79)
    fake_nvml.fail("*", LOST, gpu=H100)
    assert [g.health for g in source.gpus()] == ["healthy", "lost"]


def test_processes_are_told_by_kind(fake_nvml: FakeNvml, source: NvmlSource) -> None:
    uuid = _uuids(source)[H100]
    fake_nvml.process(H100, 20, "C", 300)
    fake_nvml.process(H100, 30, "M", 500)
    fake_nvml.process(H100, 30, "C", 500)
    fake_nvml.process(H100, 40, "G", (1 << 64) - 1)
    found = {p.pid: (p.kind, p.memory_mib) for p in source.processes(uuid)}
    assert found == {20: ("compute", 300), 30: ("mps", 500), 40: ("graphics", None)}
    assert list(found) == [20, 30, 40]


@pytest.mark.parametrize("function", ["nvmlDeviceSetComputeMode", "nvmlDeviceGetComputeMode"])
def test_without_permission_the_error_says_so(fake_nvml: FakeNvml, source: NvmlSource, function: str) -> None:
    uuid = _uuids(source)[A100]
    fake_nvml.fail(function, NO_PERMISSION)
    with pytest.raises(DeviceError, match=rf"{uuid}: compute mode cannot be set: Insufficient Permissions"):
        source.set_exclusive(uuid, True)


def test_a_mode_that_the_driver_does_not_take_is_noticed(fake_nvml: FakeNvml, source: NvmlSource) -> None:
    """Cut behind our back between two calls: the driver says that compute mode is not supported."""
    uuid = _uuids(source)[A100]
    fake_nvml.fail("nvmlDeviceSetComputeMode", UNSUPPORTED)
    with pytest.raises(DeviceError, match="Not Supported"):
        source.set_exclusive(uuid, True)
    assert not source.exclusive(uuid)


@pytest.mark.case("K9")
def test_without_a_driver_the_error_says_where_to_look(fake_nvml: FakeNvml) -> None:
    fake_nvml.fail("nvmlInitWithFlags", DRIVER_NOT_LOADED)
    with pytest.raises(DeviceError, match="is the NVIDIA driver's library in the agent's reach: Driver Not Loaded"):
        NvmlSource()


def _elsewhere(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Python in another process, where nvidia-ml-py looks for the library by its name."""
    program = f"from gpulet.nvidia.nvml import NvmlSource\nsource = NvmlSource()\n{code}"
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_another_process_sees_what_this_one_did(fake_nvml: FakeNvml, source: NvmlSource) -> None:
    """Found by LD_LIBRARY_PATH as a driver's library is; an agent that starts anew sees what is on the GPU."""
    uuid = _uuids(source)[H100]
    made = source.create_instance(uuid, placement(source, uuid, "3g.40gb", 4))
    code = f"print(*[i.uuid for i in source.instances('{uuid}')])\nsource.destroy_instance('{uuid}', '3g.40gb', 4)"
    done = _elsewhere(code, **fake_nvml.environment())
    assert done.stdout.split() == [made.uuid], done.stderr
    assert source.instances(uuid) == ()


@pytest.mark.case("K9")
def test_without_the_library_the_error_says_where_to_look(fake_nvml: FakeNvml, tmp_path: Path) -> None:
    done = _elsewhere("", LD_LIBRARY_PATH=str(tmp_path))
    assert "is the NVIDIA driver's library in the agent's reach: NVML Shared Library Not Found" in done.stderr
