"""Who has a GPU open, through NVML."""

from collections.abc import Callable
from typing import Any

import pynvml as nv

from gpulet.nvidia.nvml_mig import optional
from gpulet.nvidia.source import GpuProcess

_MIB = 1 << 20
_NOT_TOLD = nv.NVML_VALUE_NOT_AVAILABLE_ulonglong.value


def processes(handle: Any) -> tuple[GpuProcess, ...]:
    """By PID. A client of MPS is told as such, whatever else the driver calls it."""
    found: dict[int, GpuProcess] = {}
    for kind, call in _LISTS.items():
        for process in optional(lambda call=call: call(handle)) or ():  # type: ignore[misc]
            used = process.usedGpuMemory
            memory = None if used is None or used == _NOT_TOLD else int(used) // _MIB
            found[process.pid] = GpuProcess(process.pid, kind, memory)  # type: ignore[arg-type]
    return tuple(found[pid] for pid in sorted(found))


def busy(handle: Any) -> str:
    """``GPUBusy pids=12,13`` for messages (failure case C3)."""
    pids = ",".join(str(process.pid) for process in processes(handle))
    return f"GPUBusy pids={pids or 'unknown'}: stop them, or wait until they end"


_LISTS: dict[str, Callable[[Any], list[Any]]] = {
    "graphics": nv.nvmlDeviceGetGraphicsRunningProcesses_v3,
    "compute": nv.nvmlDeviceGetComputeRunningProcesses_v3,
    "mps": nv.nvmlDeviceGetMPSComputeRunningProcesses_v3,
}
