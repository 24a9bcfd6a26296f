"""A node without a kubelet: simulated GPUs, a real runner process with real daemons, folders of its own."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpulet.agent.daemons import Daemons
from gpulet.agent.shares import Shares
from gpulet.agent.waiting import Deadline
from gpulet.nvidia.simulated import SimulatedSource

NODE = "node1"
A100, H100 = "NVIDIA-A100-SXM4-80GB", "NVIDIA-H100-80GB-HBM3"


@dataclass(frozen=True)
class Rig:
    """The node's folders, and the node code over them; made anew it knows what an agent knows after a restart."""

    root: Path
    tmpfs: bool = False

    @property
    def mps(self) -> Path:
        return self.root / "mps"

    @property
    def cdi(self) -> Path:
        return self.root / "cdi"

    @property
    def state(self) -> Path:
        return self.root / "state"

    @property
    def source(self) -> SimulatedSource:
        gpus = [(H100, True, 500), (A100, False, 500)]
        return SimulatedSource(NODE, gpus, self.state / "simulated.json", self.state / "faults.json")

    @property
    def daemons(self) -> Daemons:
        return Daemons(self.mps, "simulated", mount_shm=self.tmpfs)

    def shares(self, reached: Callable[[str], None] = lambda step: None) -> Shares:
        return Shares(
            node=NODE,
            source=self.source,
            daemons=self.daemons,
            state=self.state,
            cdi_folder=self.cdi,
            reached=reached,
        )

    def start_runner(self) -> subprocess.Popen[bytes]:
        """The program of the mps-runner pod."""
        code = "from gpulet.cli.main import main; main()"
        arguments = [sys.executable, "-c", code, "mps-runner", "--root", str(self.mps)]
        return subprocess.Popen(arguments, stdout=subprocess.DEVNULL)

    def prepare(self, claim: dict[str, Any], patience_s: float = 0.0, **shares: Any) -> Any:
        """As the kubelet would ask; conflicts are not waited for unless told."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("gpulet.agent.shares._CONFLICT_PATIENCE_S", patience_s)
            return self.shares(**shares).prepare(claim, claim["metadata"]["uid"], Deadline(10))

    def unprepare(self, uid: str, **shares: Any) -> None:
        self.shares(**shares).unprepare(uid, Deadline(20))

    def killed_at(self, call: Callable[[Callable[[str], None]], Any], nth: int) -> str | None:
        """Runs ``call(reached)`` in a process that dies at its nth step; returns that step, None if it came through."""
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            count = 0

            def reached(step: str) -> None:
                nonlocal count
                count += 1
                if count == nth:
                    os.write(write, step.encode())
                    os._exit(9)

            try:
                call(reached)
            except BaseException as error:
                os.write(write, f"failed: {error!r}".encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            step = pipe.read()
        os.waitpid(pid, 0)
        assert not step.startswith("failed"), step
        return step or None

    def leftovers(self) -> list[str]:
        """Whatever a node should not hold when it holds no share."""
        found = [
            str(p.relative_to(self.root)) for d in (self.mps, self.cdi, self.state / "claims") for p in d.glob("*")
        ]
        for gpu in self.source.gpus():
            found += [i.profile for i in self.source.instances(gpu.uuid)]
            found += ["exclusive"] if self.source.exclusive(gpu.uuid) else []
        return found

    def cdi_of(self, uid: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.cdi / f"gpulet.dev-{uid}.json").read_text())
        return document

    def environment_of(self, uid: str) -> dict[str, str]:
        (device,) = self.cdi_of(uid)["devices"]
        return dict(entry.split("=", 1) for entry in device["containerEdits"]["env"])

    def boot(self) -> None:
        """Daemons die, /run is empty, MIG instances and compute modes are gone."""
        for uuid in self.daemons.wanted():
            process = self.daemons.running(uuid)
            (self.mps / f"{uuid}.json").unlink()
            if process is not None:
                os.kill(process.pid, signal.SIGKILL)
            while self.daemons.running(uuid) is not None:
                time.sleep(0.02)
            shutil.rmtree(self.mps / uuid)
        self.source.reboot()

    def claim(self, uid: str = "c1", device: str = "gpu-0", **more: Any) -> dict[str, Any]:
        return claim(self.source, uid, device, **more)


def claim(
    source: SimulatedSource,
    uid: str,
    device: str,
    *,
    percent: int | str = 40,
    memory: str = "10Gi",
    clients: int = 1,
    namespace: str = "vision",
    isolation: str | None = None,
    purpose: str = "serve",
) -> dict[str, Any]:
    """A ResourceClaim as the scheduler leaves it."""
    gpu = source.gpus()[int(device.split("-")[1])]
    config = []
    if isolation or purpose != "serve":
        parameters = {"kind": "ShareConfig", "isolation": isolation or "Namespace", "purpose": purpose}
        config = [{"source": "FromClaim", "requests": [], "opaque": {"driver": "gpulet.dev", "parameters": parameters}}]
    result = {
        "request": "gpulet",
        "driver": "gpulet.dev",
        "pool": f"{NODE}/{gpu.uuid.lower()}",
        "device": device,
        "shareID": f"share-{uid}",
        "consumedCapacity": {"computePercent": str(percent), "memory": memory, "clients": str(clients)},
    }
    return {
        "metadata": {"namespace": namespace, "name": f"claim-{uid}", "uid": uid},
        "status": {"allocation": {"devices": {"results": [result], "config": config}}},
    }


@pytest.fixture
def rig() -> Iterator[Rig]:
    """Folders alone: for what starts no daemon. Its path is short: socket addresses hold 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="node") as folder:
        yield Rig(Path(folder))


@pytest.fixture
def runner(rig: Rig) -> Iterator[subprocess.Popen[bytes]]:
    """The program of the mps-runner pod over the rig's folders."""
    process = rig.start_runner()
    yield process
    process.terminate()
    process.wait(timeout=30)
