"""GPUs as NVML shows them: inventory, MIG instances at explicit placements, compute mode.

Proved against a stand-in for ``libnvidia-ml.so.1`` that keeps to the real structures and error codes, not on a GPU.
"""

import json
import logging
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml as nv

from gpulet.model.device import Placement
from gpulet.nvidia import nvml_mig as mig
from gpulet.nvidia.mps import SourceName
from gpulet.nvidia.source import DeviceError, Health, MigInstance, PhysicalGpu

log = logging.getLogger("gpulet.nvml")

_MIB = 1 << 20
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MIN_COMPUTE_CAPABILITY = (7, 0)
"""Limits of MPS do not exist before Volta."""
_CLIENTS = 48
_ARCHITECTURES = {5: "Volta", 6: "Turing", 7: "Ampere", 8: "Ada", 9: "Hopper", 10: "Blackwell"}
_EXCLUSIVE, _DEFAULT = nv.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS, nv.NVML_COMPUTEMODE_DEFAULT
_LOST = {nv.NVML_ERROR_GPU_IS_LOST, nv.NVML_ERROR_UNKNOWN}


class NvmlSource:
    """The GPUs of this machine."""

    name: SourceName = "nvml"

    def __init__(self, toolkit: str = "nvidia-ctk") -> None:
        """Raises DeviceError where there is no driver."""
        self._toolkit = toolkit
        self._known: dict[int, PhysicalGpu] = {}
        with _saying("NVML cannot be opened: is the NVIDIA driver's library in the agent's reach"):
            nv.nvmlInit()

    def boot_id(self) -> str:
        return _BOOT_ID.read_text().strip()

    def gpus(self) -> tuple[PhysicalGpu, ...]:
        with _saying("GPUs cannot be counted"):
            count = nv.nvmlDeviceGetCount()
        found = (self._gpu(index) for index in range(count))
        return tuple(gpu for gpu in found if gpu is not None)

    def _gpu(self, index: int) -> PhysicalGpu | None:
        """One GPU; as it was last seen but lost where it does not answer; None for one that cannot be shared."""
        try:
            gpu = _read(index)
        except nv.NVMLError as error:
            known = self._known.get(index)
            log.error("GPU %d does not answer: %s", index, error)
            return replace(known, health="lost") if known is not None and error.value in _LOST else None
        if gpu is not None:
            self._known[index] = gpu
        return gpu

    def instances(self, uuid: str) -> tuple[MigInstance, ...]:
        with _saying(f"GPU {uuid}: MIG instances cannot be listed"):
            handle = nv.nvmlDeviceGetHandleByUUID(uuid)
            if not mig.mig_mode(handle)[0]:
                return ()
            return tuple(
                MigInstance(mig.mig_uuid(compute), profile.name, info.placement.start, info.placement.size)
                for profile, instance, info in mig.gpu_instances(handle)
                for compute in mig.compute_instances(instance)[:1]
            )

    def create_instance(self, uuid: str, placement: Placement) -> MigInstance:
        where = f"GPU {uuid}: {placement.profile} at slice {placement.start}"
        with _saying(f"{where}: cannot be made"):
            handle = nv.nvmlDeviceGetHandleByUUID(uuid)
            mig.ensure_mode(handle, uuid, on=True)
            instance = mig.find(handle, placement.profile, placement.start)
            made = None
            if instance is None:
                profile = next((p for p in mig.profiles(handle) if p.name == placement.profile), None)
                if profile is None:
                    raise DeviceError(f"{where}: the GPU has no such profile")
                at = nv.c_nvmlGpuInstancePlacement_t(placement.start, placement.size)
                instance = made = nv.nvmlDeviceCreateGpuInstanceWithPlacement(handle, profile.id, byref(at))
            try:
                compute = next(iter(mig.compute_instances(instance)), None) or mig.create_compute_instance(instance)
                name = mig.mig_uuid(compute)
            except nv.NVMLError:
                if made is not None:
                    # A GPU instance without a compute instance would be nobody's (failure case C21).
                    nv.nvmlGpuInstanceDestroy(made)
                raise
        return MigInstance(name, placement.profile, placement.start, placement.size)

    def destroy_instance(self, uuid: str, profile: str, start: int) -> None:
        with _saying(f"GPU {uuid}: {profile} at slice {start} cannot be removed"):
            handle = nv.nvmlDeviceGetHandleByUUID(uuid)
            instance = mig.find(handle, profile, start) if mig.mig_mode(handle)[0] else None
            if instance is None:
                return
            for compute in mig.compute_instances(instance):
                mig.patiently(lambda compute=compute: nv.nvmlComputeInstanceDestroy(compute))  # type: ignore[misc]
            # The driver may call it in use for a moment after its compute instance is gone.
            mig.patiently(lambda: nv.nvmlGpuInstanceDestroy(instance))

    def set_exclusive(self, uuid: str, exclusive: bool) -> None:
        with _saying(f"GPU {uuid}: compute mode cannot be set"):
            handle = nv.nvmlDeviceGetHandleByUUID(uuid)
            if mig.mig_mode(handle)[0]:
                if not exclusive:
                    return
                mig.ensure_mode(handle, uuid, on=False)
            wanted = _EXCLUSIVE if exclusive else _DEFAULT
            if nv.nvmlDeviceGetComputeMode(handle) != wanted:
                nv.nvmlDeviceSetComputeMode(handle, wanted)
            if nv.nvmlDeviceGetComputeMode(handle) != wanted:
                raise DeviceError(f"GPU {uuid}: the driver did not take compute mode {wanted}")

    def exclusive(self, uuid: str) -> bool:
        with _saying(f"GPU {uuid}: compute mode cannot be read"):
            handle = nv.nvmlDeviceGetHandleByUUID(uuid)
            return not mig.mig_mode(handle)[0] and nv.nvmlDeviceGetComputeMode(handle) == _EXCLUSIVE

    def container_edits(self, uuid: str, mig_uuid: str | None) -> dict[str, Any]:
        """What NVIDIA's toolkit would give a container for this device: asked anew, for MIG devices come and go.

        Its hook for the host's /tmp/nvidia-mps is left out: our daemon's pipe is elsewhere.
        """
        command = [self._toolkit, "cdi", "generate", "--format=json", "--device-name-strategy=uuid"]
        command += ["--feature-flag=disable-ipc-discoverer"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DeviceError(
                f"{' '.join(command)}: {error}; install the NVIDIA Container Toolkit on the node"
            ) from error
        if done.returncode:
            raise DeviceError(f"{' '.join(command)}: {done.stderr.strip()[-500:]}")
        spec = json.loads(done.stdout)
        name = mig_uuid or uuid
        device = next((d for d in spec["devices"] if d["name"] == name), None)
        if device is None:
            raise DeviceError(f"the NVIDIA Container Toolkit does not know device {name}")
        common = spec.get("containerEdits", {})
        own = device["containerEdits"]
        return {key: [*common.get(key, []), *own.get(key, [])] for key in {**common, **own}}


def _read(index: int) -> PhysicalGpu | None:
    handle = nv.nvmlDeviceGetHandleByIndex(index)
    uuid = nv.nvmlDeviceGetUUID(handle)
    if tuple(nv.nvmlDeviceGetCudaComputeCapability(handle)) < _MIN_COMPUTE_CAPABILITY:
        log.warning("GPU %s is older than Volta: MPS cannot limit clients on it; it is not offered", uuid)
        return None
    architecture = nv.nvmlDeviceGetArchitecture(handle)
    current, pending, capable = mig.mig_mode(handle)
    both = architecture >= mig.HOPPER
    profiles = mig.profiles(handle) if capable and (current or both) else []
    compute_slices = max((p.slices for p in profiles), default=1)
    return PhysicalGpu(
        index=index,
        uuid=uuid,
        product=nv.nvmlDeviceGetName(handle).replace(" ", "-"),
        architecture=_ARCHITECTURES.get(architecture, f"architecture-{architecture}"),
        memory_mib=_memory_mib(handle),
        clients=_CLIENTS,
        compute_slices=compute_slices,
        memory_slices=max((start + size for p in profiles for start, size in p.starts), default=1),
        whole=both or not current,
        placements=_placements(profiles, compute_slices),
        millicores=0,
        # A mode that waits for a reset is the admin's to finish (failure case C6).
        health=_health(current, pending),
    )


def _health(current: bool, pending: bool) -> Health:
    return "healthy" if current == pending else "degraded"


def _placements(profiles: list[mig.Profile], compute_slices: int) -> tuple[Placement, ...]:
    return tuple(
        Placement(p.name, start, size, p.slices, p.memory_mib, max(1, _CLIENTS * p.slices // compute_slices))
        for p in profiles
        for start, size in p.starts
    )


def _memory_mib(handle: Any) -> int:
    """Usable memory: what the driver keeps for itself is not (failure case D19)."""
    try:
        memory = nv.nvmlDeviceGetMemoryInfo(handle, version=nv.nvmlMemory_v2)
        return int((memory.total - memory.reserved) // _MIB)
    except nv.NVMLError as error:
        if error.value not in (nv.NVML_ERROR_FUNCTION_NOT_FOUND, nv.NVML_ERROR_NOT_SUPPORTED):
            raise
        return int(nv.nvmlDeviceGetMemoryInfo(handle).total // _MIB)


@contextmanager
def _saying(what: str) -> Iterator[None]:
    """NVML's errors as ours, with what was attempted."""
    try:
        yield
    except nv.NVMLError as error:
        raise DeviceError(f"{what}: {error}") from error
