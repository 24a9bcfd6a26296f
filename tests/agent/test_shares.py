"""Prepare and unprepare on a node with real daemon processes: end states, kills at every step, conflicts, boots."""

import json
import os
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpulet.agent.claims import ClaimRefusedError
from gpulet.agent.waiting import Deadline, DeadlineError
from gpulet.nvidia.source import DeviceError

MIG = "gpu-0-mig-3g-40gb-4"

pytestmark = pytest.mark.usefixtures("runner")


@pytest.mark.case("A10", "A14", "A15")
@pytest.mark.parametrize("device", ["gpu-1", MIG])
def test_prepare_makes_the_share_and_unprepare_leaves_nothing(rig: Any, device: str) -> None:
    """Cases A10, A14, A15: what comes goes, compute mode included."""
    record = rig.prepare(rig.claim(device=device, percent=100))
    assert record.step == "ready"
    state = rig.end_state("c1")
    assert state["settled"]
    assert state["settings"] == (100.0, None)
    assert state["exclusive"] == (device == "gpu-1")
    assert state["instances"] == ([("3g.40gb", 4)] if device == MIG else [])
    rig.unprepare("c1")
    assert rig.leftovers() == []


@pytest.mark.case("B1")
def test_what_the_container_gets(rig: Any) -> None:
    """Case B1: a share of several client processes is divided among them, as MPS limits hold for each process."""
    rig.prepare(rig.claim(device="gpu-1", percent=50, memory="10Gi", clients=3))
    (device,) = rig.cdi_of("c1")["devices"]
    assert rig.cdi_of("c1")["kind"] == "gpulet.dev/share"
    assert device["name"] == "c1-gpulet"
    uuid = rig.source.gpus()[1].uuid
    assert rig.environment_of("c1") == {
        "CUDA_MPS_PIPE_DIRECTORY": "/run/gpulet/mps/pipe",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "16",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=3413M",
        "GPULET_COMPUTE_PERCENT": "50",
        "GPULET_MEMORY_MIB": "10240",
        "GPULET_DEVICE_UUID": uuid,
        "GPULET_DEVICE_SOURCE": "simulated",
    }
    mounts = {m["containerPath"]: m["hostPath"] for m in device["containerEdits"]["mounts"]}
    assert mounts == {"/run/gpulet/mps/pipe": f"{rig.mps}/{uuid}/pipe", "/dev/shm": f"{rig.mps}/{uuid}/shm"}
    rig.unprepare("c1")


@pytest.mark.case("C5")
def test_prepare_and_unprepare_may_be_repeated_and_unknown_claims_are_nobodys(rig: Any) -> None:
    first = rig.prepare(rig.claim(device="gpu-1"))
    process = rig.daemons.running(first.mps_uuid)
    assert rig.prepare(rig.claim(device="gpu-1")) == first
    assert rig.daemons.running(first.mps_uuid) == process, "case C5: a second, identical prepare touches nothing"
    rig.unprepare("c1")
    rig.unprepare("c1")
    rig.unprepare("never-seen")
    assert rig.leftovers() == []


def test_a_device_stays_until_its_last_share_goes(rig: Any) -> None:
    for uid, percent in (("c1", 40), ("c2", 60)):
        rig.prepare(rig.claim(uid, "gpu-1", percent=percent))
    uuid = rig.source.gpus()[1].uuid
    process = rig.daemons.running(uuid)
    rig.unprepare("c1")
    assert rig.daemons.running(uuid) == process
    assert rig.source.exclusive(uuid)
    rig.unprepare("c2")
    assert rig.leftovers() == []


@pytest.mark.case("D3", "D11", "D17", "P1")
@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ({"percent": 60}, {"percent": 41}, "computePercent on gpu-0 would add up to 101 of 100 with .*claim-c1"),
        ({"memory": "60Gi"}, {"memory": "20Gi"}, "memory .* would add up to 81920 of 81559"),
        ({"clients": 30}, {"clients": 19}, "clients on gpu-0 would add up to 49 of 48"),
        ({}, {"device": MIG}, "gpu-0-mig-3g-40gb-4 overlaps gpu-0, which ResourceClaim vision/claim-c1 holds"),
        ({"device": "gpu-0-mig-2g-20gb-4"}, {"device": MIG}, "overlaps gpu-0-mig-2g-20gb-4"),
        ({}, {"namespace": "other"}, "isolation Namespace"),
        ({"isolation": "None"}, {}, "isolation None"),
        ({"isolation": "Any"}, {"namespace": "other", "isolation": "None"}, "isolation None"),
        ({"purpose": "tune"}, {}, "tune and serve do not share gpu-0"),
    ],
)
def test_what_the_scheduler_should_not_have_allocated_is_refused(
    rig: Any, first: dict[str, object], second: dict[str, object], said: str
) -> None:
    """Cases D3, D11, D17, P1: the driver is the last line of defence."""
    rig.prepare(rig.claim("c1", **first))
    before = rig.leftovers()
    with pytest.raises(ClaimRefusedError, match=said):
        rig.prepare(rig.claim("c2", **second))
    assert rig.leftovers() == before, "a refused claim has no effect"
    rig.unprepare("c2")
    rig.unprepare("c1")
    assert rig.leftovers() == []


def test_neighbours_that_allow_each_other_share(rig: Any) -> None:
    """Two placements of one GPU, and two namespaces where both say Any."""
    rig.prepare(rig.claim("c1", MIG, isolation="Any", percent=50, memory="10Gi"))
    rig.prepare(rig.claim("c2", MIG, isolation="Any", percent=50, memory="10Gi", namespace="other"))
    rig.prepare(rig.claim("c3", "gpu-0-mig-4g-40gb-0", isolation="None", purpose="tune"))
    assert len({r.mps_uuid for r in rig.shares().store.all()}) == 2
    for uid in ("c1", "c2", "c3"):
        rig.unprepare(uid)
    assert rig.leftovers() == []


def test_a_share_that_is_about_to_be_freed_is_waited_for(rig: Any) -> None:
    """The kubelet tries again only 87 s after an error, so a short wait is worth it."""
    rig.prepare(rig.claim("c1", "gpu-1", percent=80))
    pid = os.fork()
    if pid == 0:
        time.sleep(1)
        rig.unprepare("c1")
        os._exit(0)
    assert rig.prepare(rig.claim("c2", "gpu-1", percent=80), patience_s=8).step == "ready"
    os.waitpid(pid, 0)
    rig.unprepare("c2")


@pytest.mark.case("F1", "F2")
def test_after_a_boot_everything_is_made_anew(rig: Any) -> None:
    """Cases F1, F2: the same claim, a new MIG UUID, and nothing of the old boot believed."""
    first = rig.prepare(rig.claim(device=MIG))
    rig.boot()
    second = rig.prepare(rig.claim(device=MIG))
    assert second.mps_uuid != first.mps_uuid
    assert second.boot_id != first.boot_id
    assert rig.environment_of("c1")["GPULET_DEVICE_UUID"] == second.mps_uuid
    rig.unprepare("c1")
    assert rig.leftovers() == []


def test_a_claim_of_before_a_boot_is_unprepared_without_having_been_prepared_again(rig: Any) -> None:
    rig.prepare(rig.claim(device=MIG))
    rig.boot()
    rig.unprepare("c1")
    assert rig.leftovers() == []


def test_daemon_that_died_is_restarted_and_is_settled_only_when_read_back_again(rig: Any) -> None:
    """Cases A9 of the driver's assertions, F13: PID and start time are watched, settings applied again."""
    record = rig.prepare(rig.claim(device="gpu-1"))
    first = rig.daemons.running(record.mps_uuid)
    assert first is not None
    os.kill(first.pid, signal.SIGKILL)
    deadline = Deadline(10)
    deadline.until(lambda: rig.daemons.running(record.mps_uuid) not in (None, first), "the restart")
    deadline.until(rig.daemons.control(record.mps_uuid).alive, "the daemon's answer")
    assert not rig.daemons.settled(record.mps_uuid)
    rig.daemons.control(record.mps_uuid).run("set_default_active_thread_percentage 30")
    rig.daemons.apply(record.mps_uuid)
    assert rig.daemons.settled(record.mps_uuid)
    assert rig.daemons.control(record.mps_uuid).default_percent() == 100.0
    rig.unprepare("c1")


@pytest.mark.case("C21")
def test_failing_mig_instance_leaves_an_error_and_no_orphan(rig: Any) -> None:
    """Case C21."""
    rig.state.mkdir(exist_ok=True)
    faults = rig.state / "faults.json"
    faults.write_text(json.dumps({"errors": {"create_compute_instance": "IN_USE"}}))
    with pytest.raises(DeviceError, match="create_compute_instance: IN_USE"):
        rig.prepare(rig.claim(device=MIG))
    faults.unlink()
    assert rig.source.instances(rig.source.gpus()[0].uuid) == ()
    assert rig.prepare(rig.claim(device=MIG)).step == "ready"
    rig.unprepare("c1")


@pytest.mark.case("N1")
def test_pods_on_a_lost_gpu_can_end(rig: Any) -> None:
    """Case N1."""
    record = rig.prepare(rig.claim(device=MIG))
    (rig.state / "faults.json").write_text(json.dumps({"health": {record.gpu: "lost"}}))
    rig.unprepare("c1")
    (rig.state / "faults.json").unlink()
    assert not list(rig.mps.glob("*")) and not list(rig.cdi.glob("*")) and rig.shares().store.all() == []


@pytest.mark.case("E10")
def test_sweep_removes_what_belongs_to_no_claim_and_only_that(rig: Any) -> None:
    kept = rig.prepare(rig.claim("c1", "gpu-1"))
    lost = rig.prepare(rig.claim("c10", MIG))
    (rig.state / "claims" / "c10.json").unlink()
    assert rig.shares().sweep(Deadline(20)) == sorted(["c10", str(lost.mps_uuid)])
    assert rig.daemons.settled(str(kept.mps_uuid))
    assert [p.name for p in rig.cdi.glob("*")] == ["gpulet.dev-c1.json"], "case E10: c1 is no prefix of c10"
    assert rig.shares().sweep(Deadline(20)) == []
    rig.unprepare("c1")


def test_two_agents_of_one_node_take_turns(rig: Any) -> None:
    """A rolling update: the kubelet may call either; no call overlaps another."""
    children = []
    for uid in ("c1", "c2", "c3", "c4"):
        pid = os.fork()
        if pid == 0:
            record = rig.prepare(rig.claim(uid, "gpu-1", percent=25))
            os._exit(0 if record.step == "ready" else 1)
        children.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 4
    assert sum(r.compute_percent for r in rig.shares().store.all()) == 100
    for uid in ("c1", "c2", "c3", "c4"):
        rig.unprepare(uid)
    assert rig.leftovers() == []


def test_each_devices_shm_is_a_tmpfs_of_its_own_and_goes_with_it(rig: Any) -> None:
    rig = replace(rig, tmpfs=True)
    record = rig.prepare(rig.claim(device="gpu-1"))
    shm = rig.daemons.folders(str(record.mps_uuid)).shm
    assert shm.is_mount()
    assert shm.stat().st_mode & 0o7777 == 0o1777, "clients run under other users than the daemon"
    daemon = rig.daemons.running(record.mps_uuid)
    assert Path(f"/proc/{daemon.pid}/root/dev/shm").stat().st_dev == shm.stat().st_dev, "the daemon sees the same"
    rig.prepare(rig.claim("c2", device="gpu-1"))
    assert Path("/proc/self/mounts").read_text().count(str(shm)) == 1, "never mounted twice"
    rig.unprepare("c1")
    rig.unprepare("c2")
    assert rig.leftovers() == []


@pytest.mark.case("A1")
def test_without_a_runner_prepare_says_so_and_works_once_there_is_one(
    rig: Any, runner: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case A1."""
    runner.terminate()
    runner.wait()
    claim = rig.claim(device="gpu-1")
    with pytest.raises(DeadlineError, match="is mps-runner up on this node"):
        rig.shares().prepare(claim, "c1", Deadline(0.5))
    late = rig.start_runner()
    assert rig.prepare(claim).step == "ready"
    rig.unprepare("c1")
    late.terminate()
    late.wait()
