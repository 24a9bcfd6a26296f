"""Machines with an A100 and an H100 on which one suite runs: simulated ones, the driver's library faked, a real GPU."""

import json
import os
from pathlib import Path
from typing import Any, Protocol

import pytest
from tests.fake_nvml.library import FakeNvml

from gpulet.model.device import Placement
from gpulet.nvidia.nvml import NvmlSource
from gpulet.nvidia.simulated import SimulatedSource, gpu_uuid
from gpulet.nvidia.source import DeviceSource

REAL_GPU = os.environ.get("GPULET_TEST_GPU")
"""UUID of a GPU that nothing else uses: the suite cuts it and changes its modes."""
LOST, IN_USE = 15, 19


class Machine(Protocol):
    """What a test may do to a machine; ``source`` knows what an agent knows after a restart."""

    @property
    def ampere(self) -> str: ...

    @property
    def hopper(self) -> str: ...

    def source(self, **policy: Any) -> DeviceSource: ...


class FaultyMachine(Machine, Protocol):
    """One whose faults can be caused."""

    def lose(self, uuid: str) -> None: ...

    def degrade(self, uuid: str) -> None: ...

    def heal(self) -> None: ...

    def boot(self) -> None: ...

    def occupy(self, uuid: str, *pids: int) -> None: ...

    def cut_ampere(self) -> None:
        """An admin switched the A100's MIG mode on, with the reset that this takes."""

    def fail_compute_instances(self) -> None: ...


class SimulatedMachine:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.ampere, self.hopper = gpu_uuid("node1", 0), gpu_uuid("node1", 1)

    def source(self, **policy: Any) -> SimulatedSource:
        gpus = [("NVIDIA-A100-SXM4-80GB", False, 0), ("NVIDIA-H100-80GB-HBM3", True, 0)]
        return SimulatedSource("node1", gpus, self._folder / "state.json", self._faults, **policy)

    @property
    def _faults(self) -> Path:
        return self._folder / "faults.json"

    def _cause(self, kind: str, **what: Any) -> None:
        faults = json.loads(self._faults.read_text()) if self._faults.exists() else {}
        faults[kind] = faults.get(kind, {}) | what
        self._faults.write_text(json.dumps(faults))

    def lose(self, uuid: str) -> None:
        self._cause("health", **{uuid: "lost"})

    def degrade(self, uuid: str) -> None:
        self._cause("health", **{uuid: "degraded"})

    def heal(self) -> None:
        self._faults.unlink(missing_ok=True)

    def boot(self) -> None:
        self.source().reboot()

    def occupy(self, uuid: str, *pids: int) -> None:
        self._cause("processes", **{uuid: list(pids)})

    def cut_ampere(self) -> None:
        source = self.source(mode_changes="WithReset")
        placement = source.gpus()[0].placements[0]
        source.create_instance(self.ampere, placement)
        source.destroy_instance(self.ampere, placement.profile, placement.start)

    def fail_compute_instances(self) -> None:
        self._cause("errors", create_compute_instance="IN_USE")


class FakeMachine:
    def __init__(self, fake: FakeNvml, folder: Path) -> None:
        self.fake = fake
        self._boot_id = folder / "boot_id"
        self._boot_id.write_text("boot-0\n")
        self.ampere, self.hopper = fake.machine("a100", "h100")

    def source(self, **policy: Any) -> NvmlSource:
        return NvmlSource(boot_id=self._boot_id, reopen_s=0.0, **policy)

    def _index(self, uuid: str) -> int:
        return [self.ampere, self.hopper].index(uuid)

    def lose(self, uuid: str) -> None:
        self.fake.fail("*", LOST, gpu=self._index(uuid))

    def degrade(self, uuid: str) -> None:
        self.fake.set(self._index(uuid), remap_pending=1)

    def heal(self) -> None:
        self.fake.heal()
        for gpu in range(2):
            self.fake.set(gpu, remap_pending=0)
            self.fake.no_processes(gpu)

    def boot(self) -> None:
        self.fake.boot()
        self._boot_id.write_text(f"boot-{int(self._boot_id.read_text().split('-')[1]) + 1}\n")

    def occupy(self, uuid: str, *pids: int) -> None:
        for pid in pids:
            self.fake.process(self._index(uuid), pid)

    def cut_ampere(self) -> None:
        self.fake.set(0, mig=1, pending=1)

    def fail_compute_instances(self) -> None:
        self.fake.fail("nvmlGpuInstanceCreateComputeInstance", IN_USE)


class RealMachine:
    """The GPU that the variable GPULET_TEST_GPU names, left as it was found."""

    ampere = ""

    def source(self, **policy: Any) -> NvmlSource:
        return NvmlSource(**policy)

    @property
    def hopper(self) -> str:
        gpu = next(gpu for gpu in self.source().gpus() if gpu.uuid == REAL_GPU)
        if not gpu.placements:
            pytest.skip(f"{gpu.product}: cannot be cut without a reset")
        return gpu.uuid

    def restore(self) -> None:
        source = self.source()
        for instance in source.instances(str(REAL_GPU)):
            source.destroy_instance(str(REAL_GPU), instance.profile, instance.start)
        source.set_exclusive(str(REAL_GPU), True)
        source.set_exclusive(str(REAL_GPU), False)


def placement(source: DeviceSource, uuid: str, profile: str, start: int) -> Placement:
    gpu = next(gpu for gpu in source.gpus() if gpu.uuid == uuid)
    return next(p for p in gpu.placements if (p.profile, p.start) == (profile, start))
