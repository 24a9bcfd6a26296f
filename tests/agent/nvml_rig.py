"""The node of the agent's tests with GPUs that NVML shows: the driver's library faked, the rest as in ``conftest``."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpulet.nvidia.driver_files import DriverFiles
from gpulet.nvidia.nvml import NvmlSource
from tests.agent.conftest import Rig
from tests.fake_nvml.library import FakeNvml, write_proc

_SPEC = {"kind": "nvidia.com/gpu", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidiactl"}]}}


@dataclass(frozen=True)
class NvmlRig(Rig):
    """GPU 0 is an H100, GPU 1 an A100. Daemons are the simulated ones: MPS needs a GPU."""

    fake: FakeNvml | None = None

    def __post_init__(self) -> None:
        self._fake.machine("h100", "a100")
        write_proc(self.root / "proc")
        self._toolkit.write_text(f"#!/bin/sh\necho '{json.dumps(_SPEC)}'\n")
        self._toolkit.chmod(0o755)
        self._boot_id.write_text("boot-0")

    @property
    def _fake(self) -> FakeNvml:
        assert self.fake is not None
        return self.fake

    @property
    def _toolkit(self) -> Path:
        return self.root / "nvidia-ctk"

    @property
    def _boot_id(self) -> Path:
        return self.root / "boot_id"

    @property
    def source(self) -> Any:
        files = DriverFiles([str(self._toolkit)], self.root / "proc")
        return NvmlSource(files=files, boot_id=self._boot_id, reopen_s=0.0)

    def reboot_gpus(self) -> None:
        self._fake.boot()
        self._boot_id.write_text(f"boot-{int(self._boot_id.read_text().split('-')[1]) + 1}")
