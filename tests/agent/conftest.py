"""A node without a kubelet: simulated GPUs, a real runner process with real daemons, folders of its own."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
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
    idle_s: float = 0.0

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

    def shares(self) -> Shares:
        return Shares(
            node=NODE,
            source=self.source,
            daemons=self.daemons,
            state=self.state,
            cdi_folder=self.cdi,
            idle_instance_s=self.idle_s,
        )

    def start_runner(self) -> subprocess.Popen[bytes]:
        """The program of the mps-runner pod."""
        # It looks more often than in its pod: hundreds of daemons come and go here.
        code = "from gpulet.agent import runner; from gpulet.cli.main import main; runner._TICK_S = 0.02; main()"
        arguments = [sys.executable, "-c", code, "mps-runner", "--root", str(self.mps)]
        # It ends with the test, however that ends.
        return subprocess.Popen(["setpriv", "--pdeathsig", "TERM", "--", *arguments], stdout=subprocess.DEVNULL)

    def prepare(self, claim: dict[str, Any], patience_s: float = 0.0) -> Any:
        """As the kubelet would ask; conflicts are not waited for unless told."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("gpulet.agent.shares._CONFLICT_PATIENCE_S", patience_s)
            return self.shares().prepare(claim, claim["metadata"]["uid"], Deadline(10))

    def unprepare(self, uid: str) -> None:
        self.shares().unprepare(uid, Deadline(20))

    def end_state(self, uid: str) -> dict[str, object]:
        """What a prepared share consists of, but for the MIG instance's random name."""
        (record,) = self.shares().store.all()
        assert record.mps_uuid is not None
        control = self.daemons.control(record.mps_uuid)
        environment = self.environment_of(uid)
        assert environment.pop("GPULET_DEVICE_UUID") == record.mps_uuid
        return {
            "record": replace(record, mps_uuid=None),
            "environment": environment,
            "wanted": self.daemons.wanted() == {record.mps_uuid},
            "settled": self.daemons.settled(record.mps_uuid),
            "settings": (control.default_percent(), control.default_memory_mib()),
            "exclusive": self.source.exclusive(record.gpu),
            "instances": [(i.profile, i.start) for i in self.source.instances(record.gpu)],
            "mounts": Path("/proc/self/mounts").read_text().count(str(self.root)),
        }

    def leftovers(self) -> list[str]:
        """Whatever a node should not hold when it holds no share."""
        folders = (self.mps, self.cdi, self.state / "claims", self.state / "instances")
        found = [str(p.relative_to(self.root)) for d in folders for p in d.glob("*")]
        found += [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(self.root) in line]
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
            shutil.rmtree(self.mps / uuid, ignore_errors=True)
        self.reboot_gpus()

    def reboot_gpus(self) -> None:
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
