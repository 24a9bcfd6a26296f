"""One GPU as NVML shows it: what it is, what it may be cut into, how it is."""

from dataclasses import dataclass, replace
from typing import Any

import pynvml as nv

from gpulet.model.device import Placement
from gpulet.nvidia import nvml_mig as mig
from gpulet.nvidia import nvml_mode
from gpulet.nvidia.capability import MpsCapability, instance_clients, mps_capability
from gpulet.nvidia.nvml_health import judge, read_signs
from gpulet.nvidia.source import MigMode, ModeChanges, PhysicalGpu, may_change
from gpulet.nvidia.tables import PRODUCTS

_MIB = 1 << 20
_ARCHITECTURES = {5: "Volta", 6: "Turing", 7: "Ampere", 8: "Ada", 9: "Hopper", 10: "Blackwell"}


@dataclass(frozen=True)
class Driver:
    """Of the whole machine."""

    version: str
    cuda: tuple[int, int]
    """The highest CUDA version that it supports."""


def driver() -> Driver:
    """Raises NVMLError."""
    cuda = int(nv.nvmlSystemGetCudaDriverVersion_v2())
    return Driver(str(nv.nvmlSystemGetDriverVersion()), (cuda // 1000, cuda % 1000 // 10))


def _mps(handle: Any, of: Driver) -> MpsCapability:
    major, minor = nv.nvmlDeviceGetCudaComputeCapability(handle)
    return mps_capability(str(nv.nvmlDeviceGetName(handle)), (major, minor), of.cuda, of.version)


def unfit(handle: Any, of: Driver) -> str | None:
    """Why a GPU cannot be shared at all; None: it can."""
    refusal = _mps(handle, of).refusal
    if refusal is not None:
        return refusal
    if mig.optional(lambda: nv.nvmlDeviceGetMinorNumber(handle)) is None:
        return "integrated: it has no device of its own"
    return None


def read(handle: Any, uuid: str, *, allowed: ModeChanges, of: Driver, xids: tuple[int, ...]) -> PhysicalGpu:
    """Raises NVMLError."""
    architecture = int(nv.nvmlDeviceGetArchitecture(handle))
    product = str(nv.nvmlDeviceGetName(handle)).replace(" ", "-")
    mode = nvml_mode.mode(handle)
    both = may_change(allowed, needs_reset=nvml_mode.needs_reset(handle))
    clients = _mps(handle, of).clients
    placements = _placements(handle, product, mode, clients) if mode is not None and (mode.current or both) else ()
    health, reason = judge(read_signs(handle, mode, xids))
    return PhysicalGpu(
        # By its minor number: an index would change when another GPU falls off the bus.
        index=int(nv.nvmlDeviceGetMinorNumber(handle)),
        uuid=uuid,
        product=product,
        architecture=_ARCHITECTURES.get(architecture, f"architecture-{architecture}"),
        memory_mib=_memory_mib(handle),
        clients=clients,
        compute_slices=max((p.compute_slices for p in placements), default=1),
        memory_slices=max((p.start + p.size for p in placements), default=1),
        whole=both or mode is None or not mode.current,
        placements=placements,
        millicores=0,
        health=health,
        health_reason=reason,
        mig_mode=mode,
        driver=of.version,
    )


def _placements(handle: Any, product: str, mode: MigMode, clients: int) -> tuple[Placement, ...]:
    profiles = [p for p in mig.profiles(handle) if p.plain]
    if not profiles and not mode.current and product in PRODUCTS:
        # Some drivers tell nothing while MIG mode is off; what is made of it is asked for again once it is on.
        known = PRODUCTS[product]
        return tuple(
            replace(p, clients=instance_clients(clients, p.compute_slices, known.compute_slices))
            for p in known.placements
        )
    whole = max((p.slices for p in profiles), default=1)
    return tuple(
        Placement(p.name, start, size, p.slices, p.memory_mib, instance_clients(clients, p.slices, whole))
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
