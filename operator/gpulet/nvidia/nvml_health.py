"""Whether a GPU can be used: from what it says of itself through NVML, and from the errors (Xids) that it reported.

Which Xids end only the program that caused them is NVIDIA's own list (its device plugin ignores the same). A fault is
over when the driver says that nothing need be done (recovery action, driver 570 and later); an older driver does not
tell, and the fault then holds until the GPU was away and came back, or the agent starts anew.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, TypeVar

import pynvml as nv

from gpulet.nvidia.nvml_mig import optional
from gpulet.nvidia.source import Health, MigMode

APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
_TOLD_BY_RECOVERY_XIDS = frozenset({154})
"""Only says that the recovery action changed, which is read anyway."""
_DEGRADING_XIDS = frozenset({63, 92, 94})
"""A row to be remapped, many single-bit errors, a contained error: what runs goes on."""
_HOLD_S = 60.0
"""An Xid comes before the driver has worked out what must be done."""
_LOST_ACTIONS = {
    nv.NVML_GPU_RECOVERY_ACTION_GPU_RESET: "reset the GPU",
    nv.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT: "reboot the node",
    nv.NVML_GPU_RECOVERY_ACTION_BUS_RESET: "reset the GPU's bus",
    nv.NVML_GPU_RECOVERY_ACTION_SYSTEM_REBOOT: "reboot the node",
}
_SLOWDOWN = (
    nv.nvmlClocksEventReasonHwSlowdown
    | nv.nvmlClocksEventReasonHwThermalSlowdown
    | nv.nvmlClocksEventReasonHwPowerBrakeSlowdown
)
T = TypeVar("T")


@dataclass(frozen=True)
class Signs:
    """What a GPU says of itself; None where product or driver does not tell."""

    recovery: int | None = None
    ecc_uncorrected: int | None = None
    """Since the driver was loaded or the GPU reset."""
    remap_pending: bool = False
    remap_failed: bool = False
    retired_pending: bool = False
    slowdown: bool = False
    mode: MigMode | None = None
    xids: tuple[int, ...] = ()


def judge(signs: Signs) -> tuple[Health, str]:
    """Health, and why it is not healthy with what helps. Pure."""
    lost = _lost(signs)
    if lost:
        return "lost", lost
    degraded = _degraded(signs)
    return ("degraded", degraded) if degraded else ("healthy", "")


def _lost(signs: Signs) -> str | None:
    fatal = [xid for xid in signs.xids if xid not in _DEGRADING_XIDS]
    if fatal:
        return f"Xid {', '.join(map(str, fatal))}: reset the GPU"
    if signs.recovery in _LOST_ACTIONS:
        return f"the driver asks: {_LOST_ACTIONS[signs.recovery]}"
    if signs.remap_failed:
        return "a memory row could not be remapped: replace the GPU"
    return None


def _degraded(signs: Signs) -> str | None:
    signs_with_words = (
        (bool(signs.recovery), "the driver asks: drain the GPU, then reset it"),
        (bool(signs.xids), f"Xid {', '.join(map(str, signs.xids))}: reset the GPU when it is drained"),
        (signs.remap_pending, "a memory row is to be remapped: reset the GPU when it is drained"),
        (signs.retired_pending, "a memory page is to be retired: reset the GPU when it is drained"),
        # Where the driver tells what must be done, a count alone is history.
        (
            signs.recovery is None and bool(signs.ecc_uncorrected),
            f"{signs.ecc_uncorrected} uncorrectable memory errors: reset the GPU when it is drained",
        ),
        (signs.slowdown, "slowed down by its hardware (heat or power): look at cooling and power supply"),
        (
            signs.mode is not None and signs.mode.current != signs.mode.pending,
            "RebootRequired: a change of MIG mode waits for a reset: reset the GPU or reboot the node",
        ),
    )
    return next((words for sign, words in signs_with_words if sign), None)


def read_signs(handle: Any, mode: MigMode | None, xids: tuple[int, ...]) -> Signs:
    """Raises NVMLError where the GPU does not answer at all."""
    remapped = optional(lambda: nv.nvmlDeviceGetRemappedRows(handle))
    clocks = optional(lambda: nv.nvmlDeviceGetCurrentClocksEventReasons(handle)) or 0
    return Signs(
        recovery=recovery_action(handle),
        ecc_uncorrected=optional(
            lambda: nv.nvmlDeviceGetTotalEccErrors(handle, nv.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nv.NVML_VOLATILE_ECC)
        ),
        remap_pending=bool(remapped and remapped[2]),
        remap_failed=bool(remapped and remapped[3]),
        retired_pending=bool(optional(lambda: nv.nvmlDeviceGetRetiredPagesPendingStatus(handle))),
        slowdown=bool(clocks & _SLOWDOWN),
        mode=mode,
        xids=xids,
    )


def recovery_action(handle: Any) -> int | None:
    values = optional(lambda: nv.nvmlDeviceGetFieldValues(handle, [nv.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION]))
    if values is None or values[0].nvmlReturn != nv.NVML_SUCCESS:
        return None
    return int(values[0].value.uiVal)


class XidLog:
    """Faults that GPUs reported and that are not over."""

    def __init__(self, ignored: Collection[int], clock: Callable[[], float]) -> None:
        self._ignored = APPLICATION_XIDS | _TOLD_BY_RECOVERY_XIDS | frozenset(ignored)
        self._clock = clock
        self._at: dict[str, dict[int, float]] = {}

    def record(self, uuid: str, xid: int) -> bool:
        """Whether it is a fault of the GPU."""
        if xid in self._ignored:
            return False
        self._at.setdefault(uuid, {})[xid] = self._clock()
        return True

    def open(self, uuid: str, recovery: int | None) -> tuple[int, ...]:
        """Xids of a GPU that are not over, given what the driver says must be done."""
        at = self._at.get(uuid, {})
        if recovery == nv.NVML_GPU_RECOVERY_ACTION_NONE:
            now = self._clock()
            self._at[uuid] = at = {xid: when for xid, when in at.items() if now - when < _HOLD_S}
        return tuple(sorted(at))

    def forget(self, uuid: str) -> None:
        """It was away and is back: a reset."""
        self._at.pop(uuid, None)


class XidEvents:
    """Xids as the driver tells of them from when this is made."""

    def __init__(self) -> None:
        self._set = nv.nvmlEventSetCreate()
        self._watched: dict[int | None, str] = {}

    def watch(self, handle: Any, uuid: str) -> None:
        """From now on; a GPU that has no events is left out."""
        if uuid not in self._watched.values():
            optional(lambda: nv.nvmlDeviceRegisterEvents(handle, nv.nvmlEventTypeXidCriticalError, self._set))
            self._watched[_address(handle)] = uuid

    def drain(self) -> list[tuple[str, int]]:
        """(GPU, Xid) since the last call. A GPU that is lost by now is still known by its handle."""
        found: list[tuple[str, int]] = []
        while True:
            try:
                event = nv.nvmlEventSetWait_v2(self._set, 0)
            except nv.NVMLError as error:
                if error.value == nv.NVML_ERROR_TIMEOUT:
                    return found
                raise
            uuid = self._watched.get(_address(event.device))
            if uuid is not None:
                found.append((uuid, int(event.eventData)))

    def close(self) -> None:
        nv.nvmlEventSetFree(self._set)


def _address(handle: Any) -> int | None:
    address: int | None = nv.cast(handle, nv.c_void_p).value
    return address
