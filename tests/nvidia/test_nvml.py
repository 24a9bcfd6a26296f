"""The NVML source through nvidia-ml-py and ctypes, over a stand-in for the driver's library."""

import ctypes
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpulet.nvidia.nvml import NvmlSource
from gpulet.nvidia.source import DeviceError
from gpulet.nvidia.tables import PRODUCTS

A100, H100 = "GPU-aaaa", "GPU-hhhh"


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Loaded before nvidia-ml-py asks for that name: the loader then gives it this one."""
    target = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("fake_nvml.c")
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-Wl,-soname,libnvidia-ml.so.1"]
    subprocess.run(["gcc", *flags, "-o", str(target), str(source)], check=True)
    return ctypes.CDLL(str(target), mode=ctypes.RTLD_GLOBAL)


@pytest.fixture
def fake(library: Any) -> Iterator[Any]:
    library.fake_reset()
    yield library
    library.fake_reset()


@pytest.fixture
def source(fake: Any) -> NvmlSource:
    return NvmlSource()


def _placement(source: NvmlSource, index: int, profile: str, start: int) -> Any:
    return next(p for p in source.gpus()[index].placements if (p.profile, p.start) == (profile, start))


def test_inventory_offers_what_can_be_shared(source: NvmlSource) -> None:
    """Cases A11, A17, D19: a GPU without limits is left out, and memory is what the driver leaves."""
    a100, h100 = source.gpus()
    assert (a100.uuid, a100.product, a100.architecture) == (A100, "NVIDIA-A100-SXM4-80GB", "Ampere")
    assert (h100.uuid, h100.product, h100.index) == (H100, "NVIDIA-H100-80GB-HBM3", 1)
    assert h100.memory_mib == 81559 - 601
    assert (a100.whole, a100.placements, h100.whole, len(h100.placements)) == (True, (), True, 18)
    assert (h100.memory_slices, h100.compute_slices, h100.millicores) == (8, 7, 0)


def test_placements_and_names_are_the_same_with_mig_off_and_on(fake: Any, source: NvmlSource) -> None:
    """The driver may not tell names while MIG is off; they are made as NVIDIA makes them."""
    off = source.gpus()[1].placements
    fake.fake_set_mig(1, 1, 1)
    assert source.gpus()[1].placements == off
    assert set(off) == set(PRODUCTS["NVIDIA-H100-80GB-HBM3"].placements)


def test_ampere_in_mig_mode_offers_its_placements_alone(fake: Any, source: NvmlSource) -> None:
    """Case C10."""
    fake.fake_set_mig(0, 1, 1)
    gpu = source.gpus()[0]
    assert (gpu.whole, len(gpu.placements), gpu.health) == (False, 18, "healthy")


def test_a_mode_that_waits_for_a_reset_keeps_new_shares_away(fake: Any, source: NvmlSource) -> None:
    """Case C6."""
    fake.fake_set_mig(0, 0, 1)
    assert [g.health for g in source.gpus()] == ["degraded", "healthy"]


def test_a_lost_gpu_does_not_hide_the_others(source: NvmlSource, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case N1."""
    assert len(source.gpus()) == 2
    monkeypatch.setenv("FAKE_NVML_ERRORS", "nvmlDeviceGetMigMode=15")
    assert [g.health for g in source.gpus()] == ["lost", "lost"]
    with pytest.raises(DeviceError, match=f"GPU {A100}"):
        source.instances(A100)


def test_instance_is_made_at_its_place_found_again_and_removed(fake: Any, source: NvmlSource) -> None:
    """Case C22: an instance that is there is adopted."""
    placement = _placement(source, 1, "3g.40gb", 4)
    made = source.create_instance(H100, placement)
    assert (made.profile, made.start, made.size) == ("3g.40gb", 4, 4)
    assert made.uuid.startswith("MIG-")
    assert NvmlSource().instances(H100) == (made,)
    assert NvmlSource().create_instance(H100, placement) == made
    source.destroy_instance(H100, "3g.40gb", 4)
    source.destroy_instance(H100, "3g.40gb", 4)
    assert source.instances(H100) == ()
    assert fake.fake_gpu_instances(1) == 0
    assert source.create_instance(H100, placement).uuid != made.uuid


@pytest.mark.parametrize(("profile", "start"), [("1g.10gb", 6), ("1g.20gb", 0), ("2g.20gb", 2), ("7g.80gb", 0)])
def test_every_shape_gets_a_compute_instance_of_its_whole_size(source: NvmlSource, profile: str, start: int) -> None:
    source.create_instance(H100, _placement(source, 1, profile, start))
    assert [(i.profile, i.start) for i in source.instances(H100)] == [(profile, start)]


def test_occupied_placement_is_an_error_that_names_it(source: NvmlSource) -> None:
    source.create_instance(H100, _placement(source, 1, "2g.20gb", 4))
    with pytest.raises(DeviceError, match=r"GPU-hhhh: 3g\.40gb at slice 4: cannot be made"):
        source.create_instance(H100, _placement(source, 1, "3g.40gb", 4))


def test_failed_compute_instance_leaves_no_gpu_instance(
    fake: Any, source: NvmlSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case C21."""
    placement = _placement(source, 1, "3g.40gb", 0)
    monkeypatch.setenv("FAKE_NVML_ERRORS", "nvmlGpuInstanceCreateComputeInstance=999")
    with pytest.raises(DeviceError, match="cannot be made"):
        source.create_instance(H100, placement)
    assert fake.fake_gpu_instances(1) == 0


def test_an_orphan_gpu_instance_is_completed(fake: Any, source: NvmlSource, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case C21: the agent died between the two halves."""
    placement = _placement(source, 1, "3g.40gb", 0)
    monkeypatch.setenv("FAKE_NVML_ERRORS", "nvmlGpuInstanceCreateComputeInstance=999,nvmlGpuInstanceDestroy=999")
    with pytest.raises(DeviceError):
        source.create_instance(H100, placement)
    monkeypatch.delenv("FAKE_NVML_ERRORS")
    assert (fake.fake_gpu_instances(1), source.instances(H100)) == (1, ())
    assert source.create_instance(H100, placement).start == 0
    assert fake.fake_gpu_instances(1) == 1


def test_a_destroy_that_is_in_use_for_a_moment_is_repeated(
    fake: Any, source: NvmlSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.create_instance(H100, _placement(source, 1, "3g.40gb", 0))
    monkeypatch.setenv("FAKE_NVML_BUSY", "1")
    source.destroy_instance(H100, "3g.40gb", 0)
    assert fake.fake_gpu_instances(1) == 0


def test_mig_mode_is_looked_at_after_it_was_set(source: NvmlSource, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call succeeds with status 19: in use, nothing changed (case C7)."""
    monkeypatch.setenv("FAKE_NVML_ERRORS", "nvmlDeviceSetMigMode=19")
    with pytest.raises(DeviceError, match="MIG mode cannot be switched on now"):
        source.create_instance(H100, _placement(source, 1, "3g.40gb", 0))


def test_ampere_is_never_switched_by_us(fake: Any, source: NvmlSource) -> None:
    placement = _placement(source, 1, "3g.40gb", 0)
    with pytest.raises(DeviceError, match="needs a GPU reset; drain the node"):
        source.create_instance(A100, placement)
    fake.fake_set_mig(0, 1, 1)
    with pytest.raises(DeviceError, match="needs a GPU reset"):
        source.set_exclusive(A100, True)


def test_compute_mode_is_exclusive_and_back(source: NvmlSource) -> None:
    """Cases A15, A26."""
    for _ in range(2):
        source.set_exclusive(A100, True)
        assert source.exclusive(A100)
    for _ in range(2):
        source.set_exclusive(A100, False)
        assert not source.exclusive(A100)


def test_hopper_goes_from_mig_to_whole_and_back(fake: Any, source: NvmlSource) -> None:
    """Case A27: both directions, and never over an instance that is left."""
    source.create_instance(H100, _placement(source, 1, "3g.40gb", 0))
    source.set_exclusive(H100, False)
    with pytest.raises(DeviceError, match="instances are left on it"):
        source.set_exclusive(H100, True)
    source.destroy_instance(H100, "3g.40gb", 0)
    source.set_exclusive(H100, True)
    assert source.exclusive(H100)
    source.set_exclusive(H100, False)
    assert source.create_instance(H100, _placement(source, 1, "3g.40gb", 0)).start == 0


def test_without_a_driver_the_error_says_where_to_look(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case K9."""
    monkeypatch.setenv("FAKE_NVML_ERRORS", "nvmlInitWithFlags=9")
    with pytest.raises(DeviceError, match="is the NVIDIA driver's library in the agent's reach"):
        NvmlSource()


def test_container_edits_are_the_toolkits_for_this_device(fake: Any, tmp_path: Path) -> None:
    """Cases C18, E11: one device, and the toolkit asked at every prepare."""
    spec = {
        "containerEdits": {"env": ["NVIDIA_VISIBLE_DEVICES=void"], "deviceNodes": [{"path": "/dev/nvidiactl"}]},
        "devices": [
            {"name": A100, "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}},
            {"name": "MIG-1", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia-caps/nvidia-cap12"}]}},
        ],
    }
    toolkit = tmp_path / "nvidia-ctk"
    toolkit.write_text(f"#!/bin/sh\ncat <<'JSON'\n{json.dumps(spec)}\nJSON\n")
    toolkit.chmod(0o755)
    source = NvmlSource(str(toolkit))
    nodes = [n["path"] for n in source.container_edits(H100, "MIG-1")["deviceNodes"]]
    assert nodes == ["/dev/nvidiactl", "/dev/nvidia-caps/nvidia-cap12"]
    assert source.container_edits(A100, None)["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]
    with pytest.raises(DeviceError, match="does not know device GPU-hhhh"):
        source.container_edits(H100, None)
    toolkit.write_text("#!/bin/sh\necho broken >&2\nexit 1\n")
    with pytest.raises(DeviceError, match="broken"):
        source.container_edits(A100, None)
    with pytest.raises(DeviceError, match="install the NVIDIA Container Toolkit"):
        NvmlSource(str(tmp_path / "none")).container_edits(A100, None)
