"""What makes a GPU or a freshly made instance usable in a container: CDI edits from the driver's own files."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.fake_nvml.library import FakeNvml, write_proc
from tests.nvidia.machines import placement

from gpulet.nvidia.driver_files import DriverFiles, shared_edits
from gpulet.nvidia.nvml import NvmlSource
from gpulet.nvidia.source import DeviceError

LIBRARY = {"hostPath": "/usr/lib64/libcuda.so.580", "containerPath": "/usr/lib64/libcuda.so.580", "options": ["ro"]}
SPEC: dict[str, Any] = {
    "cdiVersion": "0.5.0",
    "kind": "nvidia.com/gpu",
    "devices": [{"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}}],
    "containerEdits": {
        "env": ["NVIDIA_VISIBLE_DEVICES=void", "X=1"],
        "deviceNodes": [{"path": "/dev/nvidiactl"}, {"path": "/dev/nvidia-uvm"}, {"path": "/dev/nvidia5"}],
        "mounts": [LIBRARY, {"hostPath": "/tmp/nvidia-mps", "containerPath": "/tmp/nvidia-mps"}],
        "hooks": [{"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook", "args": ["update-ldcache"]}],
    },
}


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    return write_proc(tmp_path / "proc")


@pytest.fixture
def toolkit(tmp_path: Path) -> Path:
    """A program that prints SPEC, and counts how often it was run."""
    program = tmp_path / "nvidia-ctk"
    program.write_text(f"#!/bin/sh\necho \"$@\" >> {tmp_path}/runs\ncat <<'JSON'\n{json.dumps(SPEC)}\nJSON\n")
    program.chmod(0o755)
    return program


def _paths(edits: dict[str, Any]) -> list[str]:
    return [node["path"] for node in edits["deviceNodes"]]


@pytest.mark.case("E11", "C18")
def test_a_fresh_instance_is_in_the_edits_with_its_capabilities(fake_nvml: FakeNvml, proc: Path, toolkit: Path) -> None:
    """No specification that was generated before could hold it; no device but its own, and the numbers of nodes that
    need not exist on the host yet."""
    source = NvmlSource(files=DriverFiles([str(toolkit)], proc))
    uuid = source.gpus()[1].uuid
    seen = set()
    for start in (0, 4):
        made = source.create_instance(uuid, placement(source, uuid, "3g.40gb", start))
        edits = source.container_edits(uuid, made.uuid)
        control, uvm, gpu, instance, compute = edits["deviceNodes"]
        assert [control["path"], uvm["path"]] == ["/dev/nvidiactl", "/dev/nvidia-uvm"]
        assert gpu == {"path": "/dev/nvidia1", "type": "c", "major": 195, "minor": 1, "permissions": "rw"}
        for cap in (instance, compute):
            minor = cap["minor"]
            assert cap == {
                "path": f"/dev/nvidia-caps/nvidia-cap{minor}",
                "type": "c",
                "major": 234,
                "minor": minor,
                "permissions": "r",
                "fileMode": 0o444,
            }
            seen.add(minor)
    assert len(seen) == 4, "two instances have no capability in common"
    whole = source.container_edits(source.gpus()[0].uuid, None)
    assert _paths(whole) == ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0"]


def test_driver_files_come_from_the_toolkit_once_for_a_driver(proc: Path, toolkit: Path) -> None:
    files = DriverFiles([str(toolkit)], proc)
    for driver in ("580", "580", "590", "590"):
        edits = files.edits(driver, 0, None)
    assert edits["mounts"] == [LIBRARY]
    assert edits["hooks"] == SPEC["containerEdits"]["hooks"]
    assert edits["env"] == ["NVIDIA_VISIBLE_DEVICES=void", "X=1"]
    runs = (toolkit.parent / "runs").read_text().splitlines()
    assert len(runs) == 2
    assert "--feature-flag=disable-ipc-discoverer" in runs[0]


@pytest.mark.case("A9")
def test_no_other_mps_daemon_and_no_other_gpu_comes_along() -> None:
    edits = shared_edits(SPEC)
    assert [mount["containerPath"] for mount in edits["mounts"]] == [LIBRARY["containerPath"]]
    assert _paths(edits) == ["/dev/nvidiactl", "/dev/nvidia-uvm"]


@pytest.mark.parametrize("name", ["nvidia.yaml", "nvidia.json"])
def test_what_the_node_keeps_is_taken_where_the_toolkit_cannot_be_run(proc: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "cdi"
    folder.mkdir()
    (folder / "gpulet.dev-c1.json").write_text(json.dumps({"kind": "gpulet.dev/share", "containerEdits": {}}))
    (folder / name).write_text(yaml.safe_dump(SPEC) if name.endswith("yaml") else json.dumps(SPEC))
    files = DriverFiles([str(tmp_path / "none")], proc, [folder])
    assert files.edits("580", 0, None)["mounts"] == [LIBRARY]


@pytest.mark.case("C18")
def test_capabilities_that_the_runtime_hides_are_in_the_drivers_list(proc: Path, toolkit: Path) -> None:
    """NVIDIA's runtime shows a container the capabilities of instances that were there when it started, if any."""
    files = DriverFiles([str(toolkit)], proc)
    shown = files.edits("580", 1, (3, 0))["deviceNodes"][-2:]
    for access in proc.glob("driver/nvidia/capabilities/gpu1/**/access"):
        access.unlink()
    (proc / "driver/nvidia-caps").mkdir()
    lines = ["config 1", "monitor 2", "gpu1/gi30/access 7", "gpu0/gi3/access 8"]
    lines += [f"gpu1/gi3/access {shown[0]['minor']}", f"gpu1/gi3/ci0/access {shown[1]['minor']}"]
    (proc / "driver/nvidia-caps/mig-minors").write_text("\n".join(lines) + "\n")
    assert files.edits("580", 1, (3, 0))["deviceNodes"][-2:] == shown
    with pytest.raises(DeviceError, match="the driver shows no such MIG instance"):
        files.edits("580", 1, (4, 0))


@pytest.mark.case("C18")
def test_what_is_missing_is_named_with_a_remedy(proc: Path, toolkit: Path, tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="install the NVIDIA Container Toolkit on the node"):
        DriverFiles([str(tmp_path / "none")], proc, []).edits("580", 0, None)
    files = DriverFiles([str(toolkit)], proc)
    with pytest.raises(DeviceError, match=r"gpu0/mig/gi77/access: No such file or directory; the driver shows no such"):
        files.edits("580", 0, (77, 0))
    (proc / "devices").write_text("Character devices:\n  1 mem\n")
    with pytest.raises(DeviceError, match="lists no nvidia-frontend: is the NVIDIA driver loaded"):
        files.edits("580", 0, None)
    toolkit.write_text("#!/bin/sh\necho broken >&2\nexit 1\n")
    with pytest.raises(DeviceError, match="broken"):
        DriverFiles([str(toolkit)], proc, []).edits("580", 0, None)
    toolkit.write_text("#!/bin/sh\necho '{}'\n")
    with pytest.raises(DeviceError, match="has no driver files"):
        DriverFiles([str(toolkit)], proc, []).edits("580", 0, None)
