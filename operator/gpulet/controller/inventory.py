"""What the agents publish and what the nodes have left, as the planner's words. Pure."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from gpulet.api import names
from gpulet.controller.world import Raw, World, deleting
from gpulet.model.device import Gpu, Node, Placement, Taint

_DECIMAL = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {f"{letter}i": 2.0 ** (10 * power) for power, letter in enumerate("KMGTPE", start=1)}
_UNITS = {"": 1.0} | _DECIMAL | _BINARY
_QUANTITY = re.compile(r"^([+-]?[0-9]*\.?[0-9]+\.?)([eE][+-]?[0-9]+)?([numkMGTPE]|[KMGTPE]i)?$")


def quantity(text: str | int | float) -> float:
    """A Kubernetes quantity (any form that the API server accepts) as a number of its base unit; raises ValueError."""
    match = _QUANTITY.match(str(text))
    if match is None:
        raise ValueError(f"quantity {text!r} cannot be read")
    return float(match[1] + (match[2] or "")) * _UNITS[match[3] or ""]


def millicores(text: str) -> int:
    return round(quantity(text) * 1000)


def mebibytes(text: str) -> int:
    return int(quantity(text) // 2**20)


def current_pools(slices: Iterable[Raw]) -> dict[str, list[Raw]]:
    """Complete pools of our driver, newest generation only: an incomplete pool is one that is being rewritten."""
    by_pool: dict[str, list[Raw]] = defaultdict(list)
    for raw in slices:
        if raw["spec"]["driver"] == names.DRIVER:
            by_pool[raw["spec"]["pool"]["name"]].append(raw)
    pools = {}
    for pool, found in by_pool.items():
        newest = max(s["spec"]["pool"]["generation"] for s in found)
        current = [s for s in found if s["spec"]["pool"]["generation"] == newest]
        if len(current) == current[0]["spec"]["pool"]["resourceSliceCount"]:
            pools[pool] = current
    return pools


def gpus(slices: Iterable[Raw]) -> tuple[Gpu, ...]:
    """The GPUs of all complete pools, in order of node and index."""
    found = []
    for pool in current_pools(slices).values():
        devices = [d for s in pool for d in s["spec"].get("devices") or ()]
        if devices:
            node = next(s["spec"]["nodeName"] for s in pool)
            found.append(_gpu(node, devices))
    return tuple(gpu for _, gpu in sorted(found, key=lambda pair: pair[0]))


def products_of(slices: Iterable[Raw]) -> tuple[str, ...]:
    """What the cluster has, by name."""
    return tuple(sorted({gpu.product for gpu in gpus(slices)}))


def _gpu(node: str, devices: list[Raw]) -> tuple[tuple[str, int, str], Gpu]:
    whole = next((d for d in devices if _attribute(d, "type") == "gpu"), None)
    placements = [d for d in devices if _attribute(d, "type") == "mig"]
    first = whole or devices[0]
    uuid = str(_attribute(first, "uuid"))
    gpu = Gpu(
        node=node,
        uuid=uuid,
        product=str(_attribute(first, "product")),
        memory_mib=_capacity_mib(whole) if whole else sum_of_slices(placements),
        clients=_capacity(whole or first, "clients"),
        compute_slices=int(_attribute(whole, "computeSlices") or 7) if whole else 7,
        whole=whole is not None,
        placements=tuple(sorted(_placement(d) for d in placements)),
        schedulable=not any(_tainted(d) for d in devices),
        simulated_millicores=_whole_millicores(whole, placements),
    )
    return (node, int(_attribute(first, "index") or 0), uuid), gpu


def _placement(device: Raw) -> Placement:
    return Placement(
        profile=str(_attribute(device, "profile")),
        start=int(_attribute(device, "placementStart") or 0),
        size=int(_attribute(device, "placementSize") or 1),
        compute_slices=int(_attribute(device, "computeSlices") or 1),
        memory_mib=_capacity_mib(device),
        clients=_capacity(device, "clients"),
    )


def _whole_millicores(whole: Raw | None, placements: list[Raw]) -> int:
    """CPU of the whole GPU; of a cut one, scaled up from the largest placement by its compute slices."""
    if whole is not None:
        return int(_attribute(whole, "millicores") or 0)
    if not placements:
        return 0
    largest = max(placements, key=lambda d: int(_attribute(d, "computeSlices") or 1))
    return round(int(_attribute(largest, "millicores") or 0) * 7 / int(_attribute(largest, "computeSlices") or 1))


def sum_of_slices(placements: list[Raw]) -> int:
    """Memory of a GPU of which only placements are published: that of the largest."""
    return max((_capacity_mib(d) for d in placements), default=0)


def _attribute(device: Raw, name: str) -> Any:
    """The value of an attribute of our domain, whichever way it is spelled, or None."""
    attributes = device.get("attributes") or {}
    value = attributes.get(name) or attributes.get(f"{names.DRIVER}/{name}") or {}
    return next(iter(value.values()), None)


def _capacity(device: Raw, name: str) -> int:
    return int(quantity(device["capacity"][name]["value"]))


def _capacity_mib(device: Raw) -> int:
    return mebibytes(device["capacity"]["memory"]["value"])


def _tainted(device: Raw) -> bool:
    return any(t.get("effect") in ("NoSchedule", "NoExecute") for t in device.get("taints") or ())


def device_millicores(world: World, node: str, gpu: str, profile: str | None) -> int:
    """CPU that stands for a device's whole compute; 0 on a real GPU."""
    for raw in world.slices.values():
        if raw["spec"].get("nodeName") != node:
            continue
        for device in raw["spec"].get("devices") or ():
            if _attribute(device, "uuid") == gpu and _attribute(device, "profile") == (profile or "full"):
                return int(_attribute(device, "millicores") or 0)
    return 0


def nodes(world: World) -> tuple[Node, ...]:
    """Nodes with what our serving pods may take: allocatable less the requests of all other pods."""
    taken_cpu: dict[str, int] = defaultdict(int)
    taken_memory: dict[str, int] = defaultdict(int)
    taken_pods: dict[str, int] = defaultdict(int)
    for pod in world.pods.values():
        node = pod["spec"].get("nodeName")
        if not node or pod.get("status", {}).get("phase") in ("Succeeded", "Failed") or _replannable(pod):
            continue
        cpu, memory = pod_requests(pod)
        taken_cpu[node] += cpu
        taken_memory[node] += memory
        taken_pods[node] += 1
    return tuple(
        _node(raw, taken_cpu[name], taken_memory[name], taken_pods[name])
        for (_, name), raw in sorted(world.nodes.items())
    )


def _replannable(pod: Raw) -> bool:
    """A serving pod of our plan: the planner counts what it needs itself."""
    labels = pod["metadata"].get("labels") or {}
    return (
        labels.get(names.LABEL_MANAGED_BY) == names.MANAGED_BY
        and labels.get(names.LABEL_ROLE) == "serve"
        and not deleting(pod)
    )


def pod_requests(pod: Raw) -> tuple[int, int]:
    """(millicores, MiB) that the scheduler counts: containers and sidecars together, or the largest init step."""
    spec = pod["spec"]
    running = [_requests(c) for c in spec["containers"]]
    steps = []
    for container in spec.get("initContainers") or ():
        if container.get("restartPolicy") == "Always":
            running.append(_requests(container))
        else:
            steps.append(_requests(container))
    cpu, memory = sum(r[0] for r in running), sum(r[1] for r in running)
    return max([cpu, *(s[0] for s in steps)]), max([memory, *(s[1] for s in steps)])


def _requests(container: Mapping[str, Any]) -> tuple[int, int]:
    resources = container.get("resources") or {}
    wanted = (resources.get("limits") or {}) | (resources.get("requests") or {})
    return millicores(wanted.get("cpu", "0")), mebibytes(wanted.get("memory", "0"))


def _node(raw: Raw, cpu: int, memory: int, pods: int) -> Node:
    allocatable = raw.get("status", {}).get("allocatable") or {}
    is_ready = any(
        c["type"] == "Ready" and c["status"] == "True" for c in raw.get("status", {}).get("conditions") or ()
    )
    taints = tuple(
        Taint(t["key"], t.get("value", ""), t["effect"])
        for t in raw["spec"].get("taints") or ()
        if t["effect"] != "PreferNoSchedule"
    )
    return Node(
        name=raw["metadata"]["name"],
        free_cpu_millicores=max(0, millicores(allocatable.get("cpu", "0")) - cpu),
        free_memory_mib=max(0, mebibytes(allocatable.get("memory", "0")) - memory),
        free_pods=max(0, int(quantity(allocatable.get("pods", "110"))) - pods),
        ready=is_ready and not raw["spec"].get("unschedulable", False),
        taints=taints,
        labels=tuple(sorted((raw["metadata"].get("labels") or {}).items())),
    )
