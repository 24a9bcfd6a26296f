"""MIG through NVML: profiles with their placements, GPU and compute instances, the mode.

Profiles and placements are always asked for: ids and grids differ between products, names between drivers. Errors
are NVML's own; ``gpulet.nvidia.nvml`` says them as ours.
"""

import math
import time
from collections.abc import Callable, Iterator
from ctypes import byref, c_uint
from dataclasses import dataclass
from typing import Any, TypeVar

import pynvml as nv

_LAST_PROFILE = 0x20
_TRIES, _PAUSE_S = 6, 0.5
_NAMING_PARTS = 8
_GIB = 1 << 30
_MIB = 1 << 20
_ABSENT = (nv.NVML_ERROR_NOT_SUPPORTED, nv.NVML_ERROR_INVALID_ARGUMENT, nv.NVML_ERROR_FUNCTION_NOT_FOUND)
T = TypeVar("T")


@dataclass(frozen=True)
class Profile:
    """A GPU instance profile of one GPU."""

    id: int
    name: str
    slices: int
    memory_mib: int
    starts: tuple[tuple[int, int], ...]
    """(start, size) of each possible placement."""

    @property
    def plain(self) -> bool:
        """Variants (+me, -me, +gfx) differ in engines that no share asks for: they are known, not offered."""
        return "+" not in self.name and "-" not in self.name


def profiles(handle: Any) -> list[Profile]:
    """All profiles of a GPU by name; empty where the driver does not tell (some do not while MIG mode is off)."""
    total = int(nv.nvmlDeviceGetMemoryInfo(handle).total)
    found: dict[str, Profile] = {}
    for number in range(_LAST_PROFILE):
        info = optional(lambda number=number: nv.nvmlDeviceGetGpuInstanceProfileInfo(handle, number, version=1))  # type: ignore[misc]
        if info is None:
            continue
        named = optional(lambda number=number: nv.nvmlDeviceGetGpuInstanceProfileInfo(handle, number, version=2))  # type: ignore[misc]
        name = str(named.name).removeprefix("MIG ") if named is not None else ""
        # With MIG off the driver may know profiles but not their names; variants then look like their plain profile.
        name = name or profile_name(info.sliceCount, int(info.memorySizeMB), total)
        if name not in found:
            starts = tuple(sorted((p.start, p.size) for p in _possible_placements(handle, info.id)))
            found[name] = Profile(info.id, name, info.sliceCount, int(info.memorySizeMB), starts)
    return list(found.values())


def profile_name(slices: int, memory_mib: int, total_bytes: int) -> str:
    """As NVIDIA names profiles: memory in eighths of the GPU's (rounded up), of the GPU's GiB (rounded up).

    A half is rounded up (an H200's 70.5 is 3g.71gb), which Python's ``round`` would not do.
    """
    part = math.ceil(memory_mib * _MIB / total_bytes * _NAMING_PARTS) / _NAMING_PARTS
    return f"{slices}g.{math.floor(part * math.ceil(total_bytes / _GIB) + 0.5)}gb"


def _possible_placements(handle: Any, profile: int) -> list[Any]:
    count = c_uint()
    nv.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile, None, byref(count))
    array = (nv.c_nvmlGpuInstancePlacement_t * count.value)()
    nv.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile, array, byref(count))
    return list(array[: count.value])


def gpu_instances(handle: Any, known: list[Profile]) -> Iterator[tuple[Profile, Any, Any]]:
    """(profile, instance, info) of each GPU instance."""
    for profile in known:
        count = c_uint()
        array = (nv.c_nvmlGpuInstance_t * max(1, len(profile.starts)))()
        nv.nvmlDeviceGetGpuInstances(handle, profile.id, array, byref(count))
        for instance in array[: count.value]:
            yield profile, instance, nv.nvmlGpuInstanceGetInfo(instance)


def find(handle: Any, known: list[Profile], profile: str, start: int) -> Any | None:
    for candidate, instance, info in gpu_instances(handle, known):
        if candidate.name == profile and info.placement.start == start:
            return instance
    return None


def create_gpu_instance(handle: Any, profile: Profile, start: int, size: int) -> Any:
    at = nv.c_nvmlGpuInstancePlacement_t(start, size)
    return nv.nvmlDeviceCreateGpuInstanceWithPlacement(handle, profile.id, byref(at))


def _compute_profiles(instance: Any) -> list[Any]:
    engines = nv.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
    asked = (
        optional(
            lambda number=number: nv.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, number, engines, version=2)  # type: ignore[misc]
        )
        for number in range(nv.NVML_COMPUTE_INSTANCE_PROFILE_COUNT)
    )
    return [info for info in asked if info is not None]


def compute_instances(instance: Any) -> list[tuple[Any, bool]]:
    """Each compute instance of a GPU instance, and whether it takes the whole of it."""
    found = []
    infos = _compute_profiles(instance)
    whole = max((info.sliceCount for info in infos), default=0)
    for info in infos:
        count = c_uint()
        array = (nv.c_nvmlComputeInstance_t * max(1, info.instanceCount))()
        nv.nvmlGpuInstanceGetComputeInstances(instance, info.id, array, byref(count))
        found += [(compute, info.sliceCount == whole) for compute in array[: count.value]]
    return found


def create_compute_instance(instance: Any) -> Any:
    """The one that takes the whole GPU instance."""
    largest = max(_compute_profiles(instance), key=lambda info: info.sliceCount)
    return nv.nvmlGpuInstanceCreateComputeInstance(instance, largest.id)


def mig_uuid(compute: Any) -> str:
    return str(nv.nvmlDeviceGetUUID(nv.nvmlComputeInstanceGetInfo(compute).device))


def whole_uuid(instance: Any) -> str:
    """The UUID of a GPU instance that is one whole compute instance; else empty."""
    computes = compute_instances(instance)
    return mig_uuid(computes[0][0]) if len(computes) == 1 and computes[0][1] else ""


def optional(call: Callable[[], T]) -> T | None:
    """None where the device or the driver does not have it."""
    try:
        return call()
    except nv.NVMLError as error:
        if error.value not in _ABSENT:
            raise
        return None


def patiently(call: Callable[[], object]) -> None:
    """Until the driver no longer calls it in use, which it may for a moment; gone already is success."""
    for left in reversed(range(_TRIES)):
        try:
            call()
        except nv.NVMLError as error:
            if error.value == nv.NVML_ERROR_NOT_FOUND:
                return
            if error.value != nv.NVML_ERROR_IN_USE or not left:
                raise
            time.sleep(_PAUSE_S)
        else:
            return
