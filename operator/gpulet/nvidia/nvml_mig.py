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

from gpulet.nvidia.source import DeviceError

HOPPER = 9
"""NVML's architecture number from which on MIG mode changes without a reset."""
_LAST_PROFILE = 0x20
_TRIES, _PAUSE_S = 6, 0.5
_NAMING_PARTS = 8
_GIB = 1 << 30
_MIB = 1 << 20
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


def mig_mode(handle: Any) -> tuple[bool, bool, bool]:
    """(current, pending, capable)."""
    try:
        current, pending = nv.nvmlDeviceGetMigMode(handle)
    except nv.NVMLError as error:
        if error.value != nv.NVML_ERROR_NOT_SUPPORTED:
            raise
        return False, False, False
    return bool(current), bool(pending), True


def ensure_mode(handle: Any, uuid: str, *, on: bool) -> None:
    """Switches the mode where that needs no reset. The call may succeed and do nothing: its status is looked at."""
    if mig_mode(handle)[0] == on:
        return
    word = "on" if on else "off"
    if nv.nvmlDeviceGetArchitecture(handle) < HOPPER:
        raise DeviceError(f"GPU {uuid}: MIG mode must be {word}, which needs a GPU reset; drain the node and set it")
    if not on and any(gpu_instances(handle)):
        raise DeviceError(f"GPU {uuid}: MIG mode cannot be switched off, instances are left on it")
    status = nv.nvmlDeviceSetMigMode(handle, int(on))
    if status != nv.NVML_SUCCESS or mig_mode(handle)[0] != on:
        raise DeviceError(f"GPU {uuid}: MIG mode cannot be switched {word} now: {nv.nvmlErrorString(status)}")


def profiles(handle: Any) -> list[Profile]:
    """Plain profiles; variants (+me, -me, +gfx) differ in engines that no share asks for."""
    total = int(nv.nvmlDeviceGetMemoryInfo(handle).total)
    found: dict[str, Profile] = {}
    for number in range(_LAST_PROFILE):
        info = _optional(lambda number=number: nv.nvmlDeviceGetGpuInstanceProfileInfo(handle, number, version=1))  # type: ignore[misc]
        if info is None:
            continue
        named = _optional(lambda number=number: nv.nvmlDeviceGetGpuInstanceProfileInfo(handle, number, version=2))  # type: ignore[misc]
        name = str(named.name).removeprefix("MIG ") if named is not None else ""
        # With MIG off the driver may know profiles but not their names.
        name = name or _name(info.sliceCount, int(info.memorySizeMB), total)
        if "+" in name or "-me" in name or name in found:
            continue
        starts = tuple(sorted((p.start, p.size) for p in _possible_placements(handle, info.id)))
        found[name] = Profile(info.id, name, info.sliceCount, int(info.memorySizeMB), starts)
    return list(found.values())


def _name(slices: int, memory_mib: int, total_bytes: int) -> str:
    """As NVIDIA names profiles: memory in eighths of the GPU's (rounded up), of the GPU's GiB (rounded up)."""
    part = math.ceil(memory_mib * _MIB / total_bytes * _NAMING_PARTS) / _NAMING_PARTS
    return f"{slices}g.{round(part * math.ceil(total_bytes / _GIB))}gb"


def _possible_placements(handle: Any, profile: int) -> list[Any]:
    count = c_uint()
    nv.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile, None, byref(count))
    array = (nv.c_nvmlGpuInstancePlacement_t * count.value)()
    nv.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile, array, byref(count))
    return list(array[: count.value])


def gpu_instances(handle: Any) -> Iterator[tuple[Profile, Any, Any]]:
    """(profile, instance, info) of each GPU instance of a profile that we offer."""
    for profile in profiles(handle):
        count = c_uint()
        array = (nv.c_nvmlGpuInstance_t * max(1, len(profile.starts)))()
        nv.nvmlDeviceGetGpuInstances(handle, profile.id, array, byref(count))
        for instance in array[: count.value]:
            yield profile, instance, nv.nvmlGpuInstanceGetInfo(instance)


def find(handle: Any, profile: str, start: int) -> Any | None:
    for candidate, instance, info in gpu_instances(handle):
        if candidate.name == profile and info.placement.start == start:
            return instance
    return None


def _compute_profiles(instance: Any) -> Iterator[Any]:
    for number in range(nv.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        info = _optional(
            lambda number=number: nv.nvmlGpuInstanceGetComputeInstanceProfileInfo(  # type: ignore[misc]
                instance, number, nv.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED, version=2
            )
        )
        if info is not None:
            yield info


def compute_instances(instance: Any) -> list[Any]:
    found = []
    for info in _compute_profiles(instance):
        count = c_uint()
        array = (nv.c_nvmlComputeInstance_t * max(1, info.instanceCount))()
        nv.nvmlGpuInstanceGetComputeInstances(instance, info.id, array, byref(count))
        found += array[: count.value]
    return found


def create_compute_instance(instance: Any) -> Any:
    """The one that takes the whole GPU instance."""
    largest = max(_compute_profiles(instance), key=lambda info: info.sliceCount)
    return nv.nvmlGpuInstanceCreateComputeInstance(instance, largest.id)


def mig_uuid(compute: Any) -> str:
    return str(nv.nvmlDeviceGetUUID(nv.nvmlComputeInstanceGetInfo(compute).device))


def _optional(call: Callable[[], T]) -> T | None:
    """None where the device or the driver does not have it."""
    absent = (nv.NVML_ERROR_NOT_SUPPORTED, nv.NVML_ERROR_INVALID_ARGUMENT, nv.NVML_ERROR_FUNCTION_NOT_FOUND)
    try:
        return call()
    except nv.NVMLError as error:
        if error.value not in absent:
            raise
        return None


def patiently(call: Callable[[], object]) -> None:
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
