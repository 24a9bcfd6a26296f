"""ResourceSlices as pure data: the contract with scheduler and controller."""

import copy
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulet.agent.devices import device_name, inventory
from gpulet.agent.slices import covers, plan_pool, pool_specs, published_health, slice_name, stale_slices
from gpulet.model.device import Placement
from gpulet.nvidia.source import Health, MigMode, PhysicalGpu
from gpulet.nvidia.tables import PRODUCTS

OWNER = {"apiVersion": "v1", "kind": "Node", "name": "node1", "uid": "u"}


def gpu(index: int = 0, product: str = "NVIDIA-H100-80GB-HBM3", health: Health = "healthy", **more: Any) -> PhysicalGpu:
    table = PRODUCTS[product]
    values: dict[str, Any] = {
        "uuid": f"GPU-{index:032x}",
        "whole": True,
        "placements": table.placements,
        "millicores": 700,
    }
    return PhysicalGpu(
        index=index,
        product=product,
        architecture=table.architecture,
        memory_mib=table.memory_mib,
        clients=table.clients,
        compute_slices=table.compute_slices,
        memory_slices=table.memory_slices,
        health=health,
        **(values | more),
    )


def specs(of: PhysicalGpu, node: str = "node1") -> list[dict[str, Any]]:
    return pool_specs(node, of, source="simulated", open_to_all=False)


def plan(of: PhysicalGpu, existing: list[dict[str, Any]], node: str = "node1") -> list[dict[str, Any]]:
    return plan_pool(node, of, existing, source="simulated", open_to_all=False, parent=OWNER)


def devices(of: PhysicalGpu) -> dict[str, dict[str, Any]]:
    return {d["name"]: d for spec in specs(of) for d in spec.get("devices", ())}


def test_counters_and_devices_lie_in_slices_of_one_pool() -> None:
    counters, content = specs(gpu())
    assert counters["pool"] == content["pool"] == {"name": f"node1/gpu-{0:032x}", "resourceSliceCount": 2}
    assert ("devices" in counters, "sharedCounters" in content) == (False, False)
    (counter_set,) = counters["sharedCounters"]
    assert len(counter_set["counters"]) == 9
    assert counter_set["counters"]["compute-slices"] == {"value": "7"}
    assert len(content["devices"]) == 19


def test_a_placement_says_where_it_lies_and_takes_its_slices() -> None:
    device = devices(gpu(index=10))["gpu-10-mig-3g-40gb-4"]
    assert device["attributes"] == {
        "type": {"string": "mig"},
        "uuid": {"string": f"GPU-{10:032x}"},
        "index": {"int": 10},
        "product": {"string": "NVIDIA-H100-80GB-HBM3"},
        "architecture": {"string": "Hopper"},
        "profile": {"string": "3g.40gb"},
        "placementStart": {"int": 4},
        "placementSize": {"int": 4},
        "computeSlices": {"int": 3},
        "source": {"string": "simulated"},
        "millicores": {"int": 300},
        "open": {"bool": False},
        "health": {"string": "healthy"},
        "migMode": {"string": "none"},
        "driverVersion": {"string": ""},
        "withdrawn": {"string": ""},
    }
    (consumed,) = device["consumesCounters"]
    assert consumed["counterSet"] == "gpu-10"
    assert {k for k in consumed["counters"]} == {f"memory-slice-{i}" for i in (4, 5, 6, 7)} | {"compute-slices"}
    assert consumed["counters"]["compute-slices"] == {"value": "3"}


def test_the_whole_gpu_takes_every_counter() -> None:
    (counters, _), device = specs(gpu()), devices(gpu())["gpu-0"]
    (consumed,) = device["consumesCounters"]
    assert consumed["counters"] == counters["sharedCounters"][0]["counters"]


def test_capacities_have_policies_the_api_server_accepts() -> None:
    """Defaults lie in their range, ranges are whole steps, a step has room; memory is in the API's own spelling."""
    for device in devices(gpu()).values():
        assert device["allowMultipleAllocations"]
        assert set(device["capacity"]) == {"computePercent", "memory", "clients"}
        for capacity in device["capacity"].values():
            bounds = capacity["requestPolicy"]["validRange"]
            assert bounds["max"] == capacity["value"]
            assert not (capacity["value"] == "1" and "step" in bounds)
    assert devices(gpu(product="NVIDIA-A100-SXM4-80GB"))["gpu-0"]["capacity"]["memory"]["value"] == "80Gi"
    assert devices(gpu())["gpu-0"]["capacity"]["memory"]["value"] == "81559Mi"
    one = devices(gpu(placements=(Placement("1g.10gb", 0, 1, 1, 9728, 1),)))["gpu-0-mig-1g-10gb-0"]
    assert one["capacity"]["clients"]["requestPolicy"] == {"default": "1", "validRange": {"min": "1", "max": "1"}}


def test_slices_stay_within_the_limits_of_the_api() -> None:
    placements = tuple(Placement(f"1g.{n}gb", 0, 1, 1, 100, 2) for n in range(1, 100))
    content = [spec["devices"] for spec in specs(gpu(placements=placements)) if "devices" in spec]
    assert [len(devices_) for devices_ in content] == [64, 36]
    assert {spec["pool"]["resourceSliceCount"] for spec in specs(gpu(placements=placements))} == {3}


@pytest.mark.case("N1")
@pytest.mark.parametrize(("health", "effect"), [("degraded", "NoSchedule"), ("lost", "NoExecute")])
def test_an_unhealthy_gpu_is_tainted_on_all_its_devices(health: Health, effect: str) -> None:
    """Case N1: that GPU alone, and it is taken off again when the GPU recovers."""
    taints = [d["taints"] for d in devices(gpu(health=health)).values()]
    assert taints == [[{"key": "gpulet.dev/unhealthy", "value": health, "effect": effect}]] * 19
    published = plan(gpu(health=health), [])
    assert published_health("node1", gpu(), published) == health
    assert published_health("node1", gpu(1), published) == "healthy"
    assert [s["spec"]["pool"]["generation"] for s in plan(gpu(), published)] == [2, 2]
    assert all("taints" not in d for s in plan(gpu(), published) for d in s["spec"].get("devices", ()))


@pytest.mark.case("C5", "M5")
def test_what_is_published_is_not_written_again() -> None:
    """Cases C5, M5: also when the API server has added fields of its own."""
    published = plan(gpu(), [])
    assert [s["spec"]["pool"]["generation"] for s in published] == [1, 1]
    stored = json.loads(json.dumps(published))
    for manifest in stored:
        manifest["metadata"] |= {"uid": "x", "resourceVersion": "7"}
        manifest["spec"]["added"] = "by the server"
    assert plan(gpu(), stored) == []


@pytest.mark.parametrize("harm", ["one deleted", "edited", "attribute added", "other generation", "one too many"])
def test_a_harmed_pool_is_written_whole_with_the_next_generation(harm: str) -> None:
    stored = copy.deepcopy(plan(gpu(), []))
    if harm == "one deleted":
        stored.pop()
    elif harm == "edited":
        stored[1]["spec"]["devices"][0]["capacity"]["computePercent"]["value"] = "200"
    elif harm == "attribute added":
        stored[1]["spec"]["devices"][0]["attributes"]["foreign"] = {"bool": True}
    elif harm == "other generation":
        stored[0]["spec"]["pool"]["generation"] = 3
    else:
        stored.append(copy.deepcopy(stored[1]) | {"metadata": {"name": "foreign"}})
    highest = max(s["spec"]["pool"]["generation"] for s in stored)
    assert [s["spec"]["pool"]["generation"] for s in plan(gpu(), stored)] == [highest + 1] * 2


@pytest.mark.case("E10")
def test_names_that_begin_alike_never_match() -> None:
    """Case E10: node-1 and node-10, gpu-1 and gpu-10."""
    nodes = {slice_name(node, gpu(i), ordinal) for node in ("node-1", "node-10") for i in (1, 10) for ordinal in (0, 1)}
    assert len(nodes) == 8
    ten = plan(gpu(10), [], "node-10")
    assert stale_slices("node-1", [gpu(1)], plan(gpu(1), [], "node-1")) == []
    assert stale_slices("node-10", [gpu(1)], ten) == [s["metadata"]["name"] for s in ten]
    assert plan(gpu(1), ten, "node-1") == plan(gpu(1), [], "node-1")


@pytest.mark.case("F6")
def test_a_gpu_that_was_taken_out_is_withdrawn() -> None:
    """Case F6: its slices alone."""
    stored = [*plan(gpu(0), []), *plan(gpu(1), [])]
    assert stale_slices("node1", [gpu(0)], stored) == [s["metadata"]["name"] for s in plan(gpu(1), [])]


def test_inventory_knows_every_published_device() -> None:
    of = gpu()
    assert {name for _, name in inventory("node1", [of])} == set(devices(of))
    assert device_name(of, Placement("1g.10gb+me", 3, 1, 1, 1, 1)) == "gpu-0-mig-1g-10gb-me-3"


_JSON = st.recursive(
    st.integers() | st.text(max_size=3),
    lambda c: st.lists(c, max_size=3) | st.dictionaries(st.text(max_size=2), c, max_size=3),
)


@given(_JSON)
def test_everything_covers_itself(value: Any) -> None:
    assert covers(value, copy.deepcopy(value))


@given(st.dictionaries(st.text(max_size=2), _JSON, min_size=1), st.data())
def test_nothing_covers_what_it_lacks(value: dict[str, Any], data: st.DataObject) -> None:
    lacking = dict(value)
    del lacking[data.draw(st.sampled_from(sorted(value)))]
    assert covers(value, lacking)
    assert not covers(lacking, value)


@pytest.mark.case("C6")
@pytest.mark.parametrize(
    ("mode", "said"),
    [(None, "none"), (MigMode(True, True), "on"), (MigMode(False, True), "off, on after a reset")],
)
def test_an_admin_can_read_the_mode(mode: MigMode | None, said: str) -> None:
    """Case C6: a mode that waits for a reset is told as such."""
    for device in devices(replace(gpu(), mig_mode=mode)).values():
        assert device["attributes"]["migMode"] == {"string": said}
