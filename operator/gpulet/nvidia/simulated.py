"""GPUs that are declared instead of found: they behave as the node code must expect of real ones.

State lies in one file, so that it outlives the agent as a GPU's state does; it is lost at a boot, as on a GPU. Faults
are read from a second file at every call, so that a test or a demonstration can cause them at any time:
``{"health": {"<uuid>": "degraded"}, "errors": {"create_compute_instance": "IN_USE"}, "processes": {"<uuid>": [17]}}``.
"""

import fcntl
import json
import uuid as uuids
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpulet.model.device import Placement
from gpulet.nvidia.mps import SourceName
from gpulet.nvidia.source import (
    DeviceError,
    GpuProcess,
    Health,
    MigInstance,
    MigMode,
    ModeChanges,
    PhysicalGpu,
    may_change,
)
from gpulet.nvidia.tables import PRODUCTS, Product

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# Namespace of the deterministic GPU UUIDs (an arbitrary constant).
_UUIDS = uuids.UUID("5d2a7f5e-7a0c-4b8e-9d44-6b1f0e2c9a31")


def gpu_uuid(node: str, index: int) -> str:
    """The UUID of a simulated GPU: the same at every start."""
    return f"GPU-{uuids.uuid5(_UUIDS, f'{node}/{index}')}"


class SimulatedSource:
    """Declared products, on one node.

    ``mig`` of a GPU whose MIG mode needs a reset says which mode it is in at first; of others, whether it may be cut.
    """

    name: SourceName = "simulated"

    def __init__(
        self,
        node: str,
        gpus: list[tuple[str, bool, int]],
        state: Path,
        faults: Path,
        mode_changes: ModeChanges = "WithoutReset",
    ) -> None:
        """``gpus``: (product, MIG mode on, millicores) by index. Raises ValueError for a product without a table."""
        for product, _, _ in gpus:
            if product not in PRODUCTS:
                raise ValueError(f"simulated product {product!r} is unknown; known: {', '.join(sorted(PRODUCTS))}")
        self._declared = {gpu_uuid(node, i): (i, *gpu) for i, gpu in enumerate(gpus)}
        self._state_file = state
        self._faults_file = faults
        self._allowed = mode_changes

    def boot_id(self) -> str:
        return str(self._load()["bootId"])

    def reboot(self) -> None:
        """What a boot of the node does to GPUs: instances and compute modes are gone, the boot id is new.

        MIG mode stays where it needs a reset.
        """
        with self._alone():
            state = self._load()
            new = _fresh(state["reboots"] + 1)
            for uuid, gpu in state["gpus"].items():
                if self._product(uuid).mig_needs_reset:
                    new["gpus"][uuid] = _unused(gpu["mig"])
            self._save(new)

    def gpus(self) -> tuple[PhysicalGpu, ...]:
        health: dict[str, Health] = self._faults().get("health", {})
        state = self._load()
        return tuple(self._gpu(uuid, state, health.get(uuid, "healthy")) for uuid in self._declared)

    def _gpu(self, uuid: str, state: dict[str, Any], health: Health) -> PhysicalGpu:
        index, name, _, millicores = self._declared[uuid]
        product = PRODUCTS[name]
        mode = self._mode(state, uuid)
        both = mode is not None and may_change(self._allowed, needs_reset=product.mig_needs_reset)
        return PhysicalGpu(
            index=index,
            uuid=uuid,
            product=name,
            architecture=product.architecture,
            memory_mib=product.memory_mib,
            clients=product.clients,
            compute_slices=product.compute_slices,
            memory_slices=product.memory_slices,
            whole=both or mode is None or not mode.current,
            placements=product.placements if mode is not None and (both or mode.current) else (),
            millicores=millicores,
            health=health,
            health_reason="" if health == "healthy" else "simulated fault",
            mig_mode=mode,
        )

    def _product(self, uuid: str) -> Product:
        return PRODUCTS[self._declared[uuid][1]]

    def _mode(self, state: dict[str, Any], uuid: str) -> MigMode | None:
        if not self._product(uuid).mig_needs_reset and not self._declared[uuid][2]:
            return None
        on = self._entry(state, uuid)["mig"]
        return MigMode(on, on)

    def _entry(self, state: dict[str, Any], uuid: str) -> dict[str, Any]:
        first = self._declared[uuid][2] and self._product(uuid).mig_needs_reset
        # An older agent's state has no mode.
        entry: dict[str, Any] = _unused(first) | state["gpus"].get(uuid, {})
        state["gpus"][uuid] = entry
        return entry

    def _switch(self, gpu: dict[str, Any], uuid: str, *, on: bool) -> None:
        """MIG mode, in the state that the caller saves."""
        if gpu["mig"] == on:
            return
        word, needs_reset = "on" if on else "off", self._product(uuid).mig_needs_reset
        if not needs_reset and not self._declared[uuid][2]:
            raise DeviceError(f"GPU {uuid}: it has no MIG mode")
        if not may_change(self._allowed, needs_reset=needs_reset):
            raise DeviceError(
                f"GPU {uuid}: MIG mode must be {word}, and migModeChanges is {self._allowed}; drain the node and "
                "set it, or allow the change"
            )
        self._fail_on_demand("set_mig_mode", uuid)
        pids = ",".join(str(process.pid) for process in self.processes(uuid))
        if pids:
            raise DeviceError(f"GPU {uuid}: MIG mode cannot be switched {word} now: In use; GPUBusy pids={pids}")
        gpu["mig"], gpu["exclusive"] = on, False

    def instances(self, uuid: str) -> tuple[MigInstance, ...]:
        return tuple(MigInstance(**instance) for instance in self._of(self._load(), uuid)["instances"])

    def create_instance(self, uuid: str, placement: Placement) -> MigInstance:
        with self._alone():
            return self._create(uuid, placement)

    def _create(self, uuid: str, placement: Placement) -> MigInstance:
        state = self._load()
        gpu = self._of(state, uuid)
        self._switch(gpu, uuid, on=True)
        instances = gpu["instances"]
        for existing in instances:
            if (existing["profile"], existing["start"]) == (placement.profile, placement.start):
                return MigInstance(**existing)
        self._fail_on_demand("create_gpu_instance", uuid)
        for other in instances:
            if placement.start < other["start"] + other["size"] and other["start"] < placement.start + placement.size:
                raise DeviceError(
                    f"GPU {uuid}: {placement.profile} at slice {placement.start} overlaps {other['profile']} at "
                    f"{other['start']}: INSUFFICIENT_RESOURCES"
                )
        self._fail_on_demand("create_compute_instance", uuid)
        made = MigInstance(f"MIG-{uuids.uuid4()}", placement.profile, placement.start, placement.size)
        instances.append(vars(made))
        self._save(state)
        return made

    def destroy_instance(self, uuid: str, profile: str, start: int) -> None:
        with self._alone():
            state = self._load()
            gpu = self._of(state, uuid)
            left = [i for i in gpu["instances"] if (i["profile"], i["start"]) != (profile, start)]
            if len(left) != len(gpu["instances"]):
                self._fail_on_demand("destroy_gpu_instance", uuid)
                gpu["instances"] = left
                self._save(state)

    def set_exclusive(self, uuid: str, exclusive: bool) -> None:
        with self._alone():
            state = self._load()
            gpu = self._of(state, uuid)
            if exclusive and gpu["instances"]:
                raise DeviceError(f"GPU {uuid}: MIG mode cannot be switched off, instances are left on it")
            if exclusive:
                self._switch(gpu, uuid, on=False)
            elif gpu["mig"]:
                return
            if gpu["exclusive"] != exclusive:
                gpu["exclusive"] = exclusive
                self._save(state)

    def exclusive(self, uuid: str) -> bool:
        return bool(self._of(self._load(), uuid)["exclusive"])

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        if not uuid.startswith("MIG-"):
            self._of(self._load(), uuid)
        pids = self._faults().get("processes", {}).get(uuid, ())
        return tuple(GpuProcess(pid, "compute", None) for pid in sorted(pids))

    def container_edits(self, uuid: str, mig_uuid: str | None) -> dict[str, Any]:
        return {}

    def _of(self, state: dict[str, Any], uuid: str) -> dict[str, Any]:
        if uuid not in self._declared:
            raise DeviceError(f"GPU {uuid} is not on this node")
        if self._faults().get("health", {}).get(uuid) == "lost":
            raise DeviceError(f"GPU {uuid}: GPU_IS_LOST")
        return self._entry(state, uuid)

    def _faults(self) -> dict[str, Any]:
        try:
            faults: dict[str, Any] = json.loads(self._faults_file.read_text())
        except FileNotFoundError:
            return {}
        return faults

    def _fail_on_demand(self, step: str, uuid: str) -> None:
        reason = self._faults().get("errors", {}).get(step)
        if reason:
            raise DeviceError(f"GPU {uuid}: {step}: {reason}")

    def _load(self) -> dict[str, Any]:
        try:
            state: dict[str, Any] = json.loads(self._state_file.read_text())
        except FileNotFoundError:
            return _fresh(0)
        return state if state["bootId"] == _boot(state["reboots"]) else _fresh(state["reboots"])

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One change of the state at a time, as a driver would do it: several GPUs' shares are made at once."""
        self._state_file.parent.mkdir(parents=True, exist_ok=True)
        with self._state_file.with_suffix(".lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _save(self, state: dict[str, Any]) -> None:
        new, text = self._state_file.with_suffix(".tmp"), json.dumps(state)
        try:
            new.write_text(text)
            new.replace(self._state_file)
        except OSError:
            # A GPU needs no disk to forget a mode: on a full one the old file's room is used.
            new.unlink(missing_ok=True)
            with self._state_file.open("r+") as file:
                file.write(text)
                file.truncate()


def _boot(reboots: int) -> str:
    return f"{_BOOT_ID.read_text().strip()}.{reboots}"


def _fresh(reboots: int) -> dict[str, Any]:
    return {"bootId": _boot(reboots), "reboots": reboots, "gpus": {}}


def _unused(mig: bool) -> dict[str, Any]:
    """A GPU's part of the state."""
    return {"mig": mig, "exclusive": False, "instances": []}
