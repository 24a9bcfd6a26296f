"""MIG mode through NVML: what it is, what waits for a reset, and changing it where the node's configuration allows."""

import time
from typing import Any

import pynvml as nv

from gpulet.nvidia.nvml_processes import busy
from gpulet.nvidia.source import DeviceError, MigMode, ModeChanges, may_change

_HOPPER = 9
"""NVML's architecture number from which on MIG mode changes without a reset."""
_TRIES, _PAUSE_S = 4, 0.5


def mode(handle: Any) -> MigMode | None:
    """None for a GPU that cannot be cut."""
    try:
        current, pending = nv.nvmlDeviceGetMigMode(handle)
    except nv.NVMLError as error:
        if error.value not in (nv.NVML_ERROR_NOT_SUPPORTED, nv.NVML_ERROR_FUNCTION_NOT_FOUND):
            raise
        return None
    return MigMode(bool(current), bool(pending))


def needs_reset(handle: Any) -> bool:
    return int(nv.nvmlDeviceGetArchitecture(handle)) < _HOPPER


def ensure(handle: Any, uuid: str, allowed: ModeChanges, *, on: bool) -> None:
    """The mode as wanted, else DeviceError with the reason; no instance may be left when it goes off.

    The driver's call may succeed and change nothing: its status counts, and what the mode is afterwards.
    """
    now = mode(handle)
    word = "on" if on else "off"
    if now is None:
        if on:
            raise DeviceError(f"GPU {uuid}: it has no MIG mode")
        return
    if now.current == on:
        return
    if now.pending == on:
        # Asked for already: asking again in every call would change nothing (failure case C6).
        raise DeviceError(f"GPU {uuid}: RebootRequired: MIG mode {word} waits for a reset; reset the GPU or reboot")
    if not may_change(allowed, needs_reset=needs_reset(handle)):
        raise DeviceError(
            f"GPU {uuid}: MIG mode must be {word}, and migModeChanges is {allowed}; drain the node and run "
            f"nvidia-smi -i {uuid} -mig {int(on)}, or allow the change"
        )
    _change(handle, uuid, now, on)


def _change(handle: Any, uuid: str, now: MigMode, on: bool) -> None:
    word = "on" if on else "off"
    for left in reversed(range(_TRIES)):
        status = int(nv.nvmlDeviceSetMigMode(handle, int(on)))
        after = mode(handle)
        if after is not None and after.current == on:
            return
        if status == nv.NVML_ERROR_RESET_REQUIRED:
            raise DeviceError(f"GPU {uuid}: RebootRequired: MIG mode {word} needs a reset; reboot the machine")
        if status == nv.NVML_ERROR_IN_USE and left:
            time.sleep(_PAUSE_S)
    # Else the next reset, whoever makes it, would bring a mode that nobody wants any more.
    nv.nvmlDeviceSetMigMode(handle, int(now.current))
    said = str(nv.nvmlErrorString(status)) if status else "it did not change"
    raise DeviceError(f"GPU {uuid}: MIG mode cannot be switched {word} now: {said}; {busy(handle)}")
