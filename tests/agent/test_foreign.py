"""Other owners of the node's GPUs: found, said, stepped back from, and never touched."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpulet.agent.claims import ClaimRefusedError
from gpulet.agent.coexistence import Coexistence, host_daemons
from gpulet.agent.foreign import HostDaemon, daemon_of, node_owners, served_by
from gpulet.agent.slices import pool_specs
from gpulet.kube.events import Events
from gpulet.nvidia.simulated_client import _connect
from tests.agent.kubelet import Api, client_of


def node(
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    allocatable: dict[str, str] | None = None,
    conditions: list[dict[str, str]] | None = None,
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "node1", "uid": "u", "labels": labels or {}, "annotations": annotations or {}},
        "status": {"allocatable": {"cpu": "8", **(allocatable or {})}, "conditions": conditions or []},
    }


_NVIDIA_SLICE = {"spec": {"driver": "gpu.nvidia.com", "nodeName": "node1"}}
_OUR_SLICE = {"spec": {"driver": "gpulet.dev", "nodeName": "node1"}}


@pytest.mark.case("A9", "C9", "C10")
@pytest.mark.parametrize(
    ("signs", "slices", "reason", "remedy"),
    [
        ({"allocatable": {"nvidia.com/gpu": "8"}}, [], "NVIDIADevicePlugin", "gpu.deploy.device-plugin=false"),
        ({"allocatable": {"nvidia.com/gpu.shared": "8"}}, [], "NVIDIADevicePlugin", "gpu.deploy.device-plugin=false"),
        ({"allocatable": {"nvidia.com/mig-1g.10gb": "7"}}, [], "NVIDIADevicePlugin", "nvidia.com/mig-1g.10gb"),
        ({}, [_OUR_SLICE, _NVIDIA_SLICE], "NVIDIADRADriver", "keep its GPU plugin off this node"),
        ({"labels": {"nvidia.com/mig.config": "all-1g.10gb"}}, [], "MIGManager", "gpu.deploy.mig-manager=false"),
        ({"annotations": {"hami.io/node-handshake": "Reported 2026"}}, [], "HAMi", "off this node"),
        ({"labels": {"nos.nebuly.com/gpu-partitioning": "mps"}}, [], "Nos", "remove the label"),
        (
            {"conditions": [{"type": "gpu-fractioning.nvidia.com/Ready", "status": "True"}]},
            [],
            "KAIGpuFractioning",
            "keep kai-gpu-fractioning off",
        ),
    ],
)
def test_signs_of_other_owners(signs: dict[str, Any], slices: list[Any], reason: str, remedy: str) -> None:
    """Each is named, with what to do about it."""
    (owner,) = node_owners(node(**signs), slices)
    assert owner.reason == reason
    assert remedy in owner.message


@pytest.mark.case("C15")
def test_what_is_left_of_an_owner_that_went_is_no_sign() -> None:
    """Case C15: resources with 0, labels that switch a part off, a handshake of a plugin that is gone."""
    left = node(
        labels={
            "nvidia.com/mig.config": "all-disabled",
            "nvidia.com/gpu.deploy.mig-manager": "false",
            "nvidia.com/gpu.deploy.device-plugin": "false",
            "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB",
        },
        annotations={"hami.io/node-handshake": "Deleted_2026.01.01"},
        allocatable={"nvidia.com/gpu": "0", "nvidia.com/mig-1g.10gb": "0"},
        conditions=[{"type": "gpu-fractioning.nvidia.com/Ready", "status": "False"}],
    )
    assert node_owners(left, [_OUR_SLICE]) == []
    assert node_owners({"metadata": {"name": "bare"}}, []) == []


def test_our_daemons_and_our_control_program_are_ours() -> None:
    """By their pipe: a name proves nothing, NVIDIA's program is ours too."""
    program = ["/usr/bin/nvidia-cuda-mps-control", "-f"]
    ours = {"CUDA_MPS_PIPE_DIRECTORY": "/run/gpulet/mps/GPU-1/pipe"}
    assert daemon_of(1, program, ours, "/run/gpulet/mps") is None
    assert daemon_of(1, program, {"CUDA_MPS_PIPE_DIRECTORY": "/run/gpulet/mps2/x"}, "/run/gpulet/mps") is not None
    assert daemon_of(1, program, {}, "/run/gpulet/mps") == HostDaemon(1, "/tmp/nvidia-mps", None, False)
    assert daemon_of(1, ["cat", "/var/log/nvidia-cuda-mps-control.log"], {}, "/run/gpulet/mps") is None


@pytest.mark.case("B3")
@pytest.mark.parametrize(
    ("devices", "pci_order", "served"),
    [
        (None, False, {0, 1}),
        ("{0}", False, {0}),
        ("{0},{1}", False, {0, 1}),
        ("GPU-", False, set()),
        ("1", True, {1}),
        ("1", False, {0, 1}),
        ("MIG-of-gpu-0", False, {0}),
        ("", False, set()),
    ],
)
def test_which_gpus_a_hosts_daemon_serves(rig: Any, devices: str | None, pci_order: bool, served: set[int]) -> None:
    """By UUID exactly; by index only where the index is sure, else each GPU may be meant (failure case B3)."""
    gpus = rig.source.gpus()
    named = devices.format(*(g.uuid for g in gpus)) if devices is not None else None
    daemon = HostDaemon(1, "/tmp/nvidia-mps", named, pci_order)
    instances = {0: ["MIG-of-gpu-0"], 1: []}
    assert {g.index for g in gpus if served_by(daemon, g, instances[g.index], simulated=False)} == served


def test_a_withdrawn_gpu_says_so_in_its_slices(rig: Any) -> None:
    """Readable with kubectl; the taint keeps new pods off and leaves running ones."""
    for owner, taints in (
        ("HAMi", [{"key": "gpulet.dev/withdrawn", "value": "HAMi", "effect": "NoSchedule"}]),
        ("", None),
    ):
        specs = pool_specs("node1", rig.source.gpus()[0], source="simulated", open_to_all=False, owner=owner)
        devices = [d for s in specs for d in s.get("devices", ())]
        assert len(devices) == 19
        assert {d["attributes"]["withdrawn"]["string"] for d in devices} == {owner}
        assert all(d.get("taints") == taints for d in devices)


@pytest.fixture
def host_daemon(tmp_path: Path) -> Iterator[Any]:
    """``host_daemon(**environment)``: a process that looks like a host's MPS control daemon."""
    program = tmp_path / "nvidia-cuda-mps-control"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
    started = []

    def start(**environment: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([program, "600"], env=environment)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


@asynccontextmanager
async def looking(rig: Any, api: Api) -> AsyncIterator[Coexistence]:
    async with client_of(api) as client:
        events = Events(client, "agent", controller="gpulet.dev/agent")
        yield Coexistence(client, rig.shares(), events, mps=rig.mps, proc=Path("/proc"), tolerated=["Nos"], ask_s=60.0)


@pytest.mark.case("A9")
async def test_a_hosts_mps_daemon_is_found_and_lives(rig: Any, runner: Any, host_daemon: Any) -> None:
    """Case A9: its GPU takes nothing new, the other does, and it goes on running; when it goes, so does the taint."""
    first, second = rig.source.gpus()
    held = rig.prepare(rig.claim("held", "gpu-0", percent=20))
    foreign = host_daemon(CUDA_VISIBLE_DEVICES=first.uuid)
    api = Api({"node1": node()})
    async with looking(rig, api) as coexistence:
        await coexistence.look()
        assert coexistence.known.is_set()
        owner = rig.shares().withdrawn.read()[first.uuid]
        assert owner.reason == "ForeignMPSDaemon" and f"pid {foreign.pid}" in owner.message
        assert set(rig.shares().withdrawn.read()) == {first.uuid}
        with pytest.raises(ClaimRefusedError, match=r"is withdrawn \(ForeignMPSDaemon\): .*left alone"):
            rig.prepare(rig.claim("new", "gpu-0", percent=20))
        assert rig.prepare(rig.claim("held", "gpu-0", percent=20)) == held, "what runs is not disturbed"
        rig.prepare(rig.claim("other", "gpu-1"))
        assert [e["note"] for e in api.events if e["reason"] == "ForeignMPSDaemon"] == [
            f"GPU {first.uuid} is withdrawn: {owner.message}"
        ]
        assert not await coexistence.look(), "said once"
        assert foreign.poll() is None
        foreign.kill()
        foreign.wait()
        assert await coexistence.look()
        assert rig.shares().withdrawn.read() == {}
        assert api.events[-1]["reason"] == "ForeignOwnerGone"
        assert rig.prepare(rig.claim("new", "gpu-0", percent=20)).step == "ready"
    for uid in ("held", "new", "other"):
        rig.unprepare(uid)
    assert second.uuid not in rig.shares().withdrawn.read()


async def test_other_owners_of_the_node_withdraw_all_gpus_unless_tolerated(rig: Any) -> None:
    api = Api({"node1": node(allocatable={"nvidia.com/gpu": "2"}, labels={"nos.nebuly.com/gpu-partitioning": "mig"})})
    async with looking(rig, api) as coexistence:
        await coexistence.look()
        assert {o.reason for o in rig.shares().withdrawn.read().values()} == {"NVIDIADevicePlugin"}
        assert len(rig.shares().withdrawn.read()) == 2
        api.claims["node1"] = node(labels={"nos.nebuly.com/gpu-partitioning": "mig"})
        assert not await coexistence.look(), "the API server is asked once a minute"
        coexistence._asked_s = None
        assert await coexistence.look()
        assert rig.shares().withdrawn.read() == {}


@contextmanager
def somebody() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        try:
            yield process
        finally:
            process.kill()


async def test_a_client_of_ours_is_never_a_stranger(rig: Any, runner: Any) -> None:
    """Also where the driver lists it as any other process."""
    record = rig.prepare(rig.claim(device="gpu-1"))
    connection = _connect(str(rig.daemons.folders(record.mps_uuid).pipe / "control"))
    connection.sendall(f"client {os.getpid()} 40\n".encode())
    assert connection.recv(64).startswith(b"ok ")
    (rig.state / "faults.json").write_text(json.dumps({"processes": {record.gpu: [os.getpid()]}}))
    async with looking(rig, Api({"node1": node()})) as coexistence:
        await coexistence.look()
        assert rig.shares().withdrawn.read() == {}
        connection.close()
        await coexistence.look()
        await coexistence.look()
        assert rig.shares().withdrawn.read()[record.gpu].reason == "ForeignProcess", "it left MPS and runs on"
    rig.unprepare("c1")


@pytest.mark.case("D6", "C3")
async def test_a_process_of_somebody_else_on_a_gpu(rig: Any, runner: Any) -> None:
    """Case D6: named by PID; our own daemon, which NVML lists too, is nobody else."""
    record = rig.prepare(rig.claim(device="gpu-0"))
    ours, (first, second) = rig.daemons.running(record.mps_uuid).pid, rig.source.gpus()
    with somebody() as stranger:
        faults = {"processes": {first.uuid: [ours], second.uuid: [stranger.pid]}}
        (rig.state / "faults.json").write_text(json.dumps(faults))
        async with looking(rig, Api({"node1": node()})) as coexistence:
            await coexistence.look()
            ((uuid, owner),) = rig.shares().withdrawn.read().items()
            assert (uuid, owner.reason) == (second.uuid, "ForeignProcess")
            assert f"pids={stranger.pid}" in owner.message
            assert stranger.poll() is None
            (rig.state / "faults.json").unlink()
            assert await coexistence.look()
            assert rig.shares().withdrawn.read() == {}
    rig.unprepare("c1")


async def test_nothing_is_known_while_the_api_server_is_away(rig: Any) -> None:
    """Then nothing may be published either."""
    from gpulet.kube.errors import UnavailableError

    api = Api({"node1": node()}, status=503)
    async with looking(rig, api) as coexistence:
        with pytest.raises(UnavailableError):
            await coexistence.look()
        assert not coexistence.known.is_set()
        api.status = 200
        await coexistence.look()
        await asyncio.wait_for(coexistence.known.wait(), 1)


def test_the_real_control_daemon_is_found_by_its_name(rig: Any, host_daemon: Any) -> None:
    foreign = host_daemon(CUDA_MPS_PIPE_DIRECTORY="/tmp/elsewhere")
    ours = host_daemon(CUDA_MPS_PIPE_DIRECTORY=f"{rig.mps}/GPU-1/pipe")
    pids = {d.pid for d in host_daemons(Path("/proc"), rig.mps)}
    assert foreign.pid in pids and ours.pid not in pids and os.getpid() not in pids
