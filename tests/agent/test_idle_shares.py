"""Shares of MIG instances that come and go: on simulated GPUs, and over the driver's library faked."""

import time
from dataclasses import replace
from typing import Any

import pytest

from gpulet.agent.claims import ClaimRefusedError
from gpulet.agent.waiting import Deadline
from gpulet.nvidia.source import DeviceError
from tests.agent.nvml_rig import NvmlRig
from tests.fake_nvml.library import FakeNvml

pytestmark = pytest.mark.usefixtures("runner")

HALF, QUARTER = "gpu-0-mig-3g-40gb-4", "gpu-0-mig-2g-20gb-4"


@pytest.fixture(params=["simulated", "nvml"])
def node(rig: Any, request: pytest.FixtureRequest) -> Any:
    if request.param == "simulated":
        return replace(rig, idle_s=60.0)
    return NvmlRig(rig.root, idle_s=60.0, fake=request.getfixturevalue("fake_nvml"))


def _instances(node: Any) -> list[tuple[str, int]]:
    source = node.source
    return sorted((i.profile, i.start) for i in source.instances(source.gpus()[0].uuid))


def _all_gone(node: Any) -> bool:
    """Nothing is left once kept instances have gone too."""
    replace(node, idle_s=0.0).shares().sweep(Deadline(10))
    return bool(node.leftovers() == [])


@pytest.mark.case("C19")
def test_a_pods_restart_finds_its_instance(node: Any) -> None:
    first = node.prepare(node.claim("c1", HALF))
    node.unprepare("c1")
    assert _instances(node) == [("3g.40gb", 4)]
    assert node.daemons.wanted() == set(), "only the instance is kept"
    second = node.prepare(node.claim("c2", HALF))
    assert second.mps_uuid == first.mps_uuid
    node.unprepare("c2")
    assert _all_gone(node)


@pytest.mark.case("C19", "A27")
def test_an_unused_instance_gives_way_to_a_prepare_at_once(node: Any) -> None:
    """Of another placement, and of the whole GPU; then back."""
    for uid, device, instances in (
        ("c1", HALF, [("3g.40gb", 4)]),
        ("c2", QUARTER, [("2g.20gb", 4)]),
        ("c3", "gpu-0", []),
        ("c4", HALF, [("3g.40gb", 4)]),
    ):
        node.prepare(node.claim(uid, device))
        assert _instances(node) == instances
        assert node.source.exclusive(node.source.gpus()[0].uuid) == (device == "gpu-0")
        node.unprepare(uid)
    assert _all_gone(node)


@pytest.mark.case("C19", "C25")
def test_sweep_reclaims_what_was_unused_long_enough_and_nothing_in_use(node: Any) -> None:
    node = replace(node, idle_s=0.2)
    used = node.prepare(node.claim("c1", "gpu-0-mig-1g-10gb-0", memory="4Gi"))
    kept = node.prepare(node.claim("c2", HALF))
    node.unprepare("c2")
    assert node.shares().sweep(Deadline(10)) == []
    time.sleep(0.25)
    assert node.shares().sweep(Deadline(10)) == [kept.mps_uuid]
    assert _instances(node) == [("1g.10gb", 0)]
    assert node.daemons.settled(str(used.mps_uuid))
    node.unprepare("c1")
    assert _all_gone(node)


@pytest.mark.case("C22")
def test_a_foreign_instance_stops_a_share_and_stays(node: Any) -> None:
    """The pod's event says what is in the way; the pod can be deleted."""
    source = node.source
    gpu = source.gpus()[0]
    theirs = next(p for p in gpu.placements if (p.profile, p.start) == ("2g.20gb", 4))
    source.create_instance(gpu.uuid, theirs)
    for device in (HALF, "gpu-0"):
        with pytest.raises(DeviceError, match=r"2g\.20gb at slice 4 is in the way and not Gpulet's"):
            node.prepare(node.claim("c1", device))
        node.unprepare("c1")
    assert _instances(node) == [("2g.20gb", 4)]
    node.prepare(node.claim("c2", "gpu-0-mig-4g-40gb-0"))
    node.unprepare("c2")
    assert ("2g.20gb", 4) in _instances(node)


@pytest.mark.case("D3")
def test_a_used_instance_stops_what_overlaps_it(node: Any) -> None:
    node.prepare(node.claim("c1", HALF))
    for device in (QUARTER, "gpu-0"):
        with pytest.raises(ClaimRefusedError, match="overlaps gpu-0-mig-3g-40gb-4"):
            node.prepare(node.claim("c2", device))
    assert _instances(node) == [("3g.40gb", 4)]
    node.unprepare("c1")
    assert _all_gone(node)


@pytest.mark.case("F1", "F2", "C18")
def test_after_a_boot_the_instance_is_made_anew(node: Any) -> None:
    """Another name, another daemon, a CDI file that names it; what was kept idle before is forgotten."""
    first = node.prepare(node.claim("c1", HALF))
    node.prepare(node.claim("c2", "gpu-0-mig-1g-10gb-0", memory="4Gi"))
    node.unprepare("c2")
    node.boot()
    assert _instances(node) == []
    again = node.prepare(node.claim("c1", HALF))
    assert again.mps_uuid != first.mps_uuid
    assert node.environment_of("c1")["GPULET_DEVICE_UUID"] == again.mps_uuid
    assert _instances(node) == [("3g.40gb", 4)]
    node.shares().sweep(Deadline(10))
    node.unprepare("c1")
    assert _all_gone(node)


@pytest.mark.case("C18", "E11")
def test_the_container_gets_the_instances_own_devices(rig: Any, fake_nvml: FakeNvml) -> None:
    """From the driver's access files of the instance as it is now; the driver's files, and no environment of others."""
    node = NvmlRig(rig.root, fake=fake_nvml)
    node.prepare(node.claim("c1", HALF))
    (device,) = node.cdi_of("c1")["devices"]
    nodes = [n["path"] for n in device["containerEdits"]["deviceNodes"]]
    assert nodes[:2] == ["/dev/nvidiactl", "/dev/nvidia0"]
    assert len(nodes) == 4 and all(path.startswith("/dev/nvidia-caps/nvidia-cap") for path in nodes[2:])
    environment = node.environment_of("c1")
    assert environment["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert environment["GPULET_DEVICE_SOURCE"] == "nvml"
    node.unprepare("c1")
    assert _all_gone(node)
