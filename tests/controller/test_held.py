"""A node whose slices are gone for seconds has not lost its GPUs."""

import copy
from typing import Any

from gpulet.controller.held import HOLD_S, HeldInventory
from gpulet.controller.inventory import gpus
from tests.controller.cluster import node, whole_gpu_slice

NODES = {("", "node1"): node("node1"), ("", "node2"): node("node2")}


def keyed(*slices: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {("", raw["metadata"]["name"]): raw for raw in slices}


def uuids(held: dict[tuple[str, str], dict[str, Any]]) -> list[str]:
    return [gpu.uuid for gpu in gpus(held.values())]


def test_slices_that_go_with_a_kubelet_are_held_for_a_while() -> None:
    one, two, held = whole_gpu_slice("node1", 0), whole_gpu_slice("node2", 0), HeldInventory()
    assert uuids(held.observe(keyed(one, two), NODES, now_s=0)) == ["GPU-node1-0", "GPU-node2-0"]
    assert uuids(held.observe(keyed(two), NODES, now_s=HOLD_S - 1)) == ["GPU-node1-0", "GPU-node2-0"]
    assert uuids(held.observe(keyed(two), NODES, now_s=HOLD_S + 1)) == ["GPU-node2-0"]


def test_a_pool_that_is_being_rewritten_is_held_too() -> None:
    whole, held = whole_gpu_slice("node1", 0), HeldInventory()
    held.observe(keyed(whole), NODES, now_s=0)
    half = copy.deepcopy(whole)
    half["spec"]["pool"] |= {"generation": 2, "resourceSliceCount": 2}
    assert uuids(held.observe(keyed(half), NODES, now_s=1)) == ["GPU-node1-0"]


def test_what_the_agent_says_holds_at_once() -> None:
    """An empty pool is an answer, and so is a Node that has been deleted."""
    whole, held = whole_gpu_slice("node1", 0), HeldInventory()
    held.observe(keyed(whole), NODES, now_s=0)
    emptied = copy.deepcopy(whole)
    emptied["spec"]["pool"]["generation"] = 2
    emptied["spec"]["devices"] = []
    assert uuids(held.observe(keyed(emptied), NODES, now_s=1)) == []
    held.observe(keyed(whole), NODES, now_s=2)
    assert uuids(held.observe({}, {("", "node2"): node("node2")}, now_s=3)) == []
