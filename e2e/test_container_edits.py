"""The agent's CDI files as containerd and runc take them: a container gets devices that the host has no nodes for.

No cluster and no GPU: one containerd of the pinned version in a mount namespace of its own, and files of the driver
that are written here. What CUDA makes of such devices, only a GPU can tell.
"""

import json
import shlex
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fake_nvml.library import write_proc

from e2e.cluster.binaries import ensure_binaries
from e2e.cluster.commands import say
from gpulet.agent import cdi
from gpulet.agent.claims import ClaimRecord
from gpulet.agent.daemons import DaemonFolders
from gpulet.nvidia.driver_files import DriverFiles

_SPEC = {
    "kind": "nvidia.com/gpu",
    "containerEdits": {
        "env": ["NVIDIA_VISIBLE_DEVICES=all"],
        "mounts": [{"hostPath": "/etc/os-release", "containerPath": "/driver-file", "options": ["ro", "bind"]}],
    },
}
_CONTAINERD = """version = 3
root = "{0}/root"
state = "{0}/state"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime"]
[grpc]
address = "{0}/containerd.sock"
"""
_RUN = """
set -e
mkdir -p /var/run/cdi
mount --bind {folder}/cdi /var/run/cdi
{binaries}/containerd -c {folder}/containerd.toml > {folder}/log 2>&1 &
daemon=$!
trap 'kill $daemon; wait $daemon' EXIT
for _ in $(seq 100); do [ -S {folder}/containerd.sock ] && break; sleep 0.1; done
{binaries}/ctr -a {folder}/containerd.sock run --rm --rootfs --device {device} --env NVIDIA_VISIBLE_DEVICES=all \
  --mount type=bind,src=/usr,dst=/usr,options=rbind:ro {folder}/rootfs claim /usr/bin/sh -c {script}
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short: containerd's sockets are addresses of at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="cdi") as name:
        yield Path(name)


def _share(folder: Path) -> tuple[str, dict[str, object]]:
    """A CDI file for a share of a MIG instance of GPU 1; returns the device's id and the edits that name it."""
    record = ClaimRecord(
        uid="4f1a",
        namespace="vision",
        name="claim",
        boot_id="boot",
        request="gpulet",
        pool="node1/gpu-1",
        device="gpu-1-mig-3g-40gb-4",
        share_id=None,
        gpu="GPU-1",
        profile="3g.40gb",
        start=4,
        compute_percent=40,
        memory_mib=1024,
        clients=1,
        isolation="Namespace",
        purpose="serve",
        mps_uuid="MIG-1",
    )
    daemon = DaemonFolders(folder / "mps", "MIG-1")
    for path in (daemon.pipe, daemon.shm, folder / "cdi", folder / "rootfs"):
        path.mkdir(parents=True)
    toolkit = folder / "nvidia-ctk"
    toolkit.write_text(f"#!/bin/sh\necho {shlex.quote(json.dumps(_SPEC))}\n")
    toolkit.chmod(0o755)
    edits = DriverFiles([str(toolkit)], write_proc(folder / "proc")).edits("580", 1, (1, 0))
    cdi.write(folder / "cdi", record.uid, cdi.spec(record, daemon, "nvml", edits))
    return cdi.cdi_id(record), edits


@pytest.mark.case("C18", "E11")
@pytest.mark.timeout(1800)
def test_containerd_makes_the_devices_of_an_instance_that_the_host_has_no_nodes_for(folder: Path) -> None:
    """The first run on a machine builds containerd. A pod's own environment does not win over the claim's."""
    device, edits = _share(folder)
    for name in ("bin", "lib", "lib64", "sbin"):
        (folder / "rootfs" / name).symlink_to(f"usr/{name}")
    (folder / "rootfs/usr").mkdir()
    (folder / "containerd.toml").write_text(_CONTAINERD.format(folder))
    script = "stat -c '%n %t %T %a' /dev/nvidia* /dev/nvidia-caps/*; env; cat /driver-file"
    run = _RUN.format(folder=folder, binaries=ensure_binaries(say), device=device, script=shlex.quote(script))
    done = subprocess.run(["unshare", "-m", "sh", "-c", run], capture_output=True, text=True, timeout=120, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    seen = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if line.startswith("/dev/nvidia")}
    nodes = {str(n["path"]): n for n in edits["deviceNodes"]}  # type: ignore[attr-defined]
    assert seen.keys() - {"/dev/nvidia-caps"} == nodes.keys(), said
    for path, node in nodes.items():
        assert not Path(path).exists(), f"{path} is on this machine: the test shows nothing"
        mode = "444" if "caps" in path else "666"
        assert seen[path] == [f"{node['major']:x}", f"{node['minor']:x}", mode]
    for line in ("NVIDIA_VISIBLE_DEVICES=void", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=40", "GPULET_DEVICE_UUID=MIG-1"):
        assert line in done.stdout.splitlines()
    assert Path("/etc/os-release").read_text().strip() in done.stdout
