"""ResourceSlices of a node's GPUs: pure, from the inventory to the objects (contract: docs/designs/0001).

One pool per GPU, so that one GPU's trouble rewrites one GPU's slices: a slice with the GPU's counters, then slices
with its devices (a slice holds one or the other).
"""

from collections.abc import Iterable
from typing import Any

from gpulet.agent.devices import NodeDevice, devices_of, pool_name
from gpulet.api import names
from gpulet.api.base import memory_quantity
from gpulet.nvidia.source import Health, PhysicalGpu

_DEVICES_PER_SLICE = 64
"""The API's limit once a device consumes counters or has taints."""
_MIN_MEMORY_MIB = 64
_ATTRIBUTE_LENGTH = 64
_TAINT_KEY = f"{names.GROUP}/unhealthy"
_OWNER_TAINT_KEY = f"{names.GROUP}/withdrawn"
_OURS = {"attributes", "capacity", "counters"}
_TAINT_EFFECTS: dict[Health, str] = {"degraded": "NoSchedule", "lost": "NoExecute"}


def pool_specs(node: str, gpu: PhysicalGpu, *, source: str, open_to_all: bool, owner: str = "") -> list[dict[str, Any]]:
    """Specs of the GPU's slices, in order, without the pool's generation. ``owner``: why it is withdrawn, if it is."""
    devices = [_device(d, source, open_to_all, owner) for d in devices_of(node, gpu)]
    chunks = [devices[i : i + _DEVICES_PER_SLICE] for i in range(0, len(devices), _DEVICES_PER_SLICE)]
    contents: list[dict[str, Any]] = [{"sharedCounters": [_counters(gpu)]}, *({"devices": c} for c in chunks)]
    pool = {"name": pool_name(node, gpu), "resourceSliceCount": len(contents)}
    return [{"driver": names.DRIVER, "nodeName": node, "pool": dict(pool)} | content for content in contents]


def slice_name(node: str, gpu: PhysicalGpu, ordinal: int) -> str:
    """The UUID ends the part that could be another's prefix: node-1 and node-10 never match (failure case E10)."""
    return f"{node}-{gpu.uuid.lower()}-{ordinal}"


def plan_pool(
    node: str,
    gpu: PhysicalGpu,
    existing: Iterable[dict[str, Any]],
    *,
    source: str,
    open_to_all: bool,
    parent: dict[str, Any],
    owner: str = "",
) -> list[dict[str, Any]]:
    """The slices to write so that the pool is right: none if ``existing`` (all slices of the driver) already are.

    Whatever changes, all slices of the pool get the next generation: consumers wait for a complete one.
    """
    specs = pool_specs(node, gpu, source=source, open_to_all=open_to_all, owner=owner)
    pool = pool_name(node, gpu)
    present = {s["metadata"]["name"]: s["spec"] for s in existing if s["spec"]["pool"]["name"] == pool}
    wanted = {slice_name(node, gpu, i): spec for i, spec in enumerate(specs)}
    generations = {spec["pool"]["generation"] for spec in present.values()}
    complete = present.keys() == wanted.keys() and len(generations) == 1
    if complete and all(covers(present[name], spec) for name, spec in wanted.items()):
        return []
    generation = max(generations, default=0) + 1
    return [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": name, "ownerReferences": [parent]},
            "spec": spec | {"pool": spec["pool"] | {"generation": generation}},
        }
        for name, spec in wanted.items()
    ]


def published_health(node: str, gpu: PhysicalGpu, existing: Iterable[dict[str, Any]]) -> Health:
    """What the GPU's published taints say of it."""
    pool = pool_name(node, gpu)
    devices = [d for s in existing if s["spec"]["pool"]["name"] == pool for d in s["spec"].get("devices") or ()]
    values = {t.get("value") for d in devices for t in d.get("taints") or () if t["key"] == _TAINT_KEY}
    return "lost" if "lost" in values else "degraded" if "degraded" in values else "healthy"


def stale_slices(node: str, gpus: Iterable[PhysicalGpu], existing: Iterable[dict[str, Any]]) -> list[str]:
    """Names of this node's slices that belong to no GPU of it."""
    pools = {pool_name(node, gpu) for gpu in gpus}
    return [s["metadata"]["name"] for s in existing if s["spec"]["pool"]["name"] not in pools]


def covers(actual: Any, wanted: Any) -> bool:
    """Whether ``actual`` says what ``wanted`` says; the API server may have added fields of its own.

    Nothing may be added where all content is ours, and taints that are no longer wanted must be gone.
    """
    if isinstance(wanted, dict):
        if not isinstance(actual, dict) or (actual.get("taints") and "taints" not in wanted):
            return False
        return all(
            key in actual and (key not in _OURS or actual[key].keys() == value.keys()) and covers(actual[key], value)
            for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        same = isinstance(actual, list) and len(actual) == len(wanted)
        return same and all(covers(a, w) for a, w in zip(actual, wanted, strict=True))
    return bool(actual == wanted)


def _counters(gpu: PhysicalGpu) -> dict[str, Any]:
    counters = {f"memory-slice-{i}": {"value": "1"} for i in range(gpu.memory_slices)}
    return {"name": _counter_set(gpu), "counters": counters | {"compute-slices": {"value": str(gpu.compute_slices)}}}


def _counter_set(gpu: PhysicalGpu) -> str:
    return f"gpu-{gpu.index}"


def _device(device: NodeDevice, source: str, open_to_all: bool, owner: str) -> dict[str, Any]:
    memory = memory_quantity(device.memory_mib)
    consumed = {f"memory-slice-{i}": {"value": "1"} for i in device.slices}
    consumed["compute-slices"] = {"value": str(device.compute_slices)}
    result: dict[str, Any] = {
        "name": device.name,
        "allowMultipleAllocations": True,
        "attributes": _attributes(device, source, open_to_all, owner),
        "capacity": {
            "computePercent": _capacity("100", default="100", minimum="1", step="1"),
            "memory": _capacity(memory, default=memory, minimum=f"{_MIN_MEMORY_MIB}Mi", step="1Mi"),
            # The step has no room in a range of one.
            "clients": _capacity(
                str(device.clients), default="1", minimum="1", step="1" if device.clients > 1 else None
            ),
        },
        "consumesCounters": [{"counterSet": _counter_set(device.gpu), "counters": consumed}],
    }
    taints = []
    effect = _TAINT_EFFECTS.get(device.gpu.health)
    if effect is not None:
        taints.append({"key": _TAINT_KEY, "value": device.gpu.health, "effect": effect})
    if owner:
        # What runs there runs on: nothing of it is known to be harmed.
        taints.append({"key": _OWNER_TAINT_KEY, "value": owner, "effect": "NoSchedule"})
    if taints:
        result["taints"] = taints
    return result


def _attributes(device: NodeDevice, source: str, open_to_all: bool, owner: str) -> dict[str, Any]:
    """Every device carries every attribute: a selector that reads a missing one fails the whole claim."""
    gpu, placement = device.gpu, device.placement
    values: dict[str, str | int | bool] = {
        "type": "mig" if placement else "gpu",
        "uuid": gpu.uuid,
        "index": gpu.index,
        "product": gpu.product,
        "architecture": gpu.architecture,
        "profile": placement.profile if placement else "full",
        "placementStart": placement.start if placement else 0,
        "placementSize": len(device.slices),
        "computeSlices": device.compute_slices,
        "source": source,
        "millicores": device.millicores,
        "open": open_to_all,
        "health": gpu.health,
        "migMode": _mig_mode(gpu),
        "driverVersion": gpu.driver[:_ATTRIBUTE_LENGTH],
        "withdrawn": owner,
    }
    kinds = {str: "string", int: "int", bool: "bool"}
    return {name: {kinds[type(value)]: value} for name, value in values.items()}


def _mig_mode(gpu: PhysicalGpu) -> str:
    if gpu.mig_mode is None:
        return "none"
    words = {True: "on", False: "off"}
    now, then = words[gpu.mig_mode.current], words[gpu.mig_mode.pending]
    return now if now == then else f"{now}, {then} after a reset"


def _capacity(value: str, *, default: str, minimum: str, step: str | None) -> dict[str, Any]:
    bounds = {"min": minimum, "max": value} | ({"step": step} if step else {})
    return {"value": value, "requestPolicy": {"default": default, "validRange": bounds}}
