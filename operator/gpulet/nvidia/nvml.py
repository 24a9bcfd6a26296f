"""GPUs as NVML shows them: inventory and health, MIG instances at explicit placements, compute mode, processes.

Proved against a stand-in for ``libnvidia-ml.so.1`` that keeps to the real structures and error codes, not on a GPU.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml as nv

from gpulet.model.device import Placement
from gpulet.nvidia import nvml_mig as mig
from gpulet.nvidia import nvml_mode, nvml_read
from gpulet.nvidia.driver_files import DriverFiles
from gpulet.nvidia.mps import SourceName
from gpulet.nvidia.nvml_health import XidEvents, XidLog, recovery_action
from gpulet.nvidia.nvml_processes import busy, processes
from gpulet.nvidia.source import DeviceError, GpuProcess, MigInstance, ModeChanges, PhysicalGpu

log = logging.getLogger("gpulet.nvml")

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_REOPEN_S = 60.0
_EXCLUSIVE, _DEFAULT = nv.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS, nv.NVML_COMPUTEMODE_DEFAULT
_LOST = {nv.NVML_ERROR_GPU_IS_LOST, nv.NVML_ERROR_UNKNOWN, nv.NVML_ERROR_RESET_REQUIRED}


class NvmlSource:
    """The GPUs of this machine. May be called from several threads."""

    name: SourceName = "nvml"

    def __init__(
        self,
        *,
        mode_changes: ModeChanges = "WithoutReset",
        ignored_xids: Collection[int] = (),
        files: DriverFiles | None = None,
        boot_id: Path = _BOOT_ID,
        reopen_s: float = _REOPEN_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises DeviceError where there is no driver.

        A GPU that was lost is seen again only by a session of NVML that begins after its return: while one does not
        answer the session is renewed, at most every ``reopen_s``.
        """
        self._allowed = mode_changes
        self._files = files or DriverFiles()
        self._boot_id = boot_id
        self._reopen_s = reopen_s
        self._clock = clock
        self._known: dict[str, PhysicalGpu] = {}
        self._unfit: set[str] = set()
        self._xids = XidLog(ignored_xids, clock)
        self._lock = threading.Lock()
        self._calls = 0
        self._lost: set[str] = set()
        self._silent = False
        self._open()

    def _open(self) -> None:
        with _saying("NVML cannot be opened: is the NVIDIA driver's library in the agent's reach"):
            nv.nvmlInit()
        self._opened_at = self._clock()
        with _saying("NVML cannot watch for errors of GPUs"):
            self._events = XidEvents()

    @contextmanager
    def _using(self, what: str) -> Iterator[None]:
        """A call into NVML: no session ends under it; its errors are ours, with what was attempted."""
        with self._lock:
            self._calls += 1
        try:
            with _saying(what):
                yield
        finally:
            with self._lock:
                self._calls -= 1

    def boot_id(self) -> str:
        return self._boot_id.read_text().strip()

    def gpus(self) -> tuple[PhysicalGpu, ...]:
        self._reopen_where_lost()
        with self._using("GPUs cannot be read"):
            self._hear()
            driver = nvml_read.driver()
            found: dict[str, PhysicalGpu] = {}
            silent: list[nv.NVMLError] = []
            for index in range(nv.nvmlDeviceGetCount()):
                try:
                    self._look_at(index, driver, found)
                except nv.NVMLError as error:
                    log.error("GPU %d does not answer: %s", index, error)
                    silent.append(error)
        return self._with_the_missing(found, silent)

    def _hear(self) -> None:
        try:
            heard = self._events.drain()
        except nv.NVMLError as error:
            log.warning("errors of GPUs cannot be heard: %s", error)
            return
        for uuid, xid in heard:
            fault = self._xids.record(uuid, xid)
            if fault:
                log.error("GPU %s: Xid %d", uuid, xid)
            else:
                log.info("GPU %s: Xid %d is its program's fault, not the GPU's", uuid, xid)

    def _look_at(self, index: int, driver: nvml_read.Driver, found: dict[str, PhysicalGpu]) -> None:
        handle = nv.nvmlDeviceGetHandleByIndex(index)
        uuid = str(nv.nvmlDeviceGetUUID(handle))
        try:
            reason = nvml_read.unfit(handle, driver)
            if reason is not None:
                if uuid not in self._unfit:
                    log.warning("GPU %s is not offered: %s", uuid, reason)
                self._unfit.add(uuid)
                return
            self._events.watch(handle, uuid)
            if uuid in self._lost:
                self._lost.remove(uuid)
                self._xids.forget(uuid)
            xids = self._xids.open(uuid, recovery_action(handle))
            found[uuid] = nvml_read.read(handle, uuid, allowed=self._allowed, of=driver, xids=xids)
        except nv.NVMLError as error:
            known = self._known.get(uuid)
            if known is None or error.value in _LOST:
                raise
            # It is there and says no to one question: what was known of it still holds.
            found[uuid] = replace(known, health="degraded", health_reason=f"it cannot be read: {error}")

    def _with_the_missing(self, found: dict[str, PhysicalGpu], silent: list[nv.NVMLError]) -> tuple[PhysicalGpu, ...]:
        """A GPU that was seen and is not, or does not answer, is listed as lost; the others go on."""
        reason = str(silent[0]) if silent else "it is no longer on the bus"
        missing = {uuid: gpu for uuid, gpu in self._known.items() if uuid not in found}
        self._lost |= missing.keys()
        self._silent = bool(silent)
        lost = {
            uuid: replace(gpu, health="lost", health_reason=f"{reason}: reset the GPU or reboot the node")
            for uuid, gpu in missing.items()
        }
        self._known |= found
        return tuple(sorted((found | lost).values(), key=lambda gpu: gpu.index))

    def _reopen_where_lost(self) -> None:
        with self._lock:
            early = self._clock() - self._opened_at < self._reopen_s
            if not (self._lost or self._silent) or self._calls or early:
                return
            with suppress(nv.NVMLError):
                self._events.close()
            with suppress(nv.NVMLError):
                nv.nvmlShutdown()
            self._open()

    def instances(self, uuid: str) -> tuple[MigInstance, ...]:
        with self._using(f"GPU {uuid}: MIG instances cannot be listed"):
            handle = nv.nvmlDeviceGetHandleByUUID(uuid)
            if not _cut(handle):
                return ()
            return tuple(
                MigInstance(mig.whole_uuid(instance), profile.name, info.placement.start, info.placement.size)
                for profile, instance, info in mig.gpu_instances(handle, mig.profiles(handle))
            )

    def create_instance(self, uuid: str, placement: Placement) -> MigInstance:
        where = f"GPU {uuid}: {placement.profile} at slice {placement.start}"
        with self._using(f"{where}: cannot be made"):
            handle = nv.nvmlDeviceGetHandleByUUID(uuid)
            nvml_mode.ensure(handle, uuid, self._allowed, on=True)
            profiles = mig.profiles(handle)
            instance = mig.find(handle, profiles, placement.profile, placement.start)
            made = None
            if instance is None:
                profile = next((p for p in profiles if p.name == placement.profile), None)
                if profile is None:
                    known = ", ".join(p.name for p in profiles)
                    raise DeviceError(f"{where}: the GPU has no such profile; it has {known}")
                instance = made = mig.create_gpu_instance(handle, profile, placement.start, placement.size)
            try:
                if not mig.compute_instances(instance):
                    mig.create_compute_instance(instance)
                name = mig.whole_uuid(instance)
            except nv.NVMLError:
                if made is not None:
                    # A GPU instance without a compute instance would be nobody's (failure case C21).
                    nv.nvmlGpuInstanceDestroy(made)
                raise
        if not name:
            raise DeviceError(f"{where}: it is divided into compute instances that Gpulet did not make; remove them")
        return MigInstance(name, placement.profile, placement.start, placement.size)

    def destroy_instance(self, uuid: str, profile: str, start: int) -> None:
        what = f"GPU {uuid}: {profile} at slice {start} cannot be removed"
        with self._using(what):
            handle = nv.nvmlDeviceGetHandleByUUID(uuid)
            instance = mig.find(handle, mig.profiles(handle), profile, start) if _cut(handle) else None
            if instance is None:
                return
            try:
                for compute, _ in mig.compute_instances(instance):
                    mig.patiently(lambda compute=compute: nv.nvmlComputeInstanceDestroy(compute))  # type: ignore[misc]
                # The driver may call it in use for a moment after its compute instance is gone.
                mig.patiently(lambda: nv.nvmlGpuInstanceDestroy(instance))
            except nv.NVMLError as error:
                if error.value != nv.NVML_ERROR_IN_USE:
                    raise
                raise DeviceError(f"{what}: {error}; {busy(handle)}") from error

    def set_exclusive(self, uuid: str, exclusive: bool) -> None:
        with self._using(f"GPU {uuid}: compute mode cannot be set"):
            handle = nv.nvmlDeviceGetHandleByUUID(uuid)
            if _cut(handle):
                if not exclusive:
                    return
                if any(mig.gpu_instances(handle, mig.profiles(handle))):
                    raise DeviceError(f"GPU {uuid}: MIG mode cannot be switched off, instances are left on it")
                nvml_mode.ensure(handle, uuid, self._allowed, on=False)
            wanted = _EXCLUSIVE if exclusive else _DEFAULT
            if nv.nvmlDeviceGetComputeMode(handle) != wanted:
                nv.nvmlDeviceSetComputeMode(handle, wanted)
            if nv.nvmlDeviceGetComputeMode(handle) != wanted:
                raise DeviceError(f"GPU {uuid}: the driver did not take compute mode {wanted}")

    def exclusive(self, uuid: str) -> bool:
        with self._using(f"GPU {uuid}: compute mode cannot be read"):
            handle = nv.nvmlDeviceGetHandleByUUID(uuid)
            return not _cut(handle) and nv.nvmlDeviceGetComputeMode(handle) == _EXCLUSIVE

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        with self._using(f"GPU {uuid}: its processes cannot be listed"):
            return processes(nv.nvmlDeviceGetHandleByUUID(uuid))

    def container_edits(self, uuid: str, mig_uuid: str | None) -> dict[str, Any]:
        """Device nodes of exactly this GPU or instance, and the driver's files."""
        with self._using(f"GPU {uuid}: its devices cannot be told"):
            minor = int(nv.nvmlDeviceGetMinorNumber(nv.nvmlDeviceGetHandleByUUID(uuid)))
            driver = str(nv.nvmlSystemGetDriverVersion())
            instance = None
            if mig_uuid is not None:
                device = nv.nvmlDeviceGetHandleByUUID(mig_uuid)
                instance = nv.nvmlDeviceGetGpuInstanceId(device), nv.nvmlDeviceGetComputeInstanceId(device)
        return self._files.edits(driver, minor, instance)


def _cut(handle: Any) -> bool:
    mode = nvml_mode.mode(handle)
    return mode is not None and mode.current


@contextmanager
def _saying(what: str) -> Iterator[None]:
    """NVML's errors as ours, with what was attempted."""
    try:
        yield
    except nv.NVMLError as error:
        raise DeviceError(f"{what}: {error}") from error
