"""Wanted MPS daemons as the agent handles them: it writes files, the runner runs processes, the pipe tells the truth.

``<root>/<uuid>.json`` is the wish for a daemon; below ``<root>/<uuid>/`` lie its folders, ``daemon.json`` (written by
the runner: which process it is) and ``applied.json`` (written by the agent last: for which process the settings were
read back). ``/run`` is emptied at boot, and these files with it.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpulet.agent import tmpfs
from gpulet.agent.files import remove, write_atomically
from gpulet.agent.waiting import Deadline
from gpulet.nvidia.mps import MpsControl, MpsError, SourceName, control_program


@dataclass(frozen=True)
class DaemonFolders:
    """Where one device's daemon has its things."""

    root: Path
    uuid: str

    @property
    def wish(self) -> Path:
        return self.root / f"{self.uuid}.json"

    @property
    def base(self) -> Path:
        return self.root / self.uuid

    @property
    def pipe(self) -> Path:
        return self.base / "pipe"

    @property
    def log(self) -> Path:
        return self.base / "log"

    @property
    def shm(self) -> Path:
        return self.base / "shm"

    @property
    def daemon(self) -> Path:
        return self.base / "daemon.json"

    @property
    def applied(self) -> Path:
        return self.base / "applied.json"


@dataclass(frozen=True)
class DaemonProcess:
    """Which process it is: a PID alone may be another's by now."""

    pid: int
    started_ticks: int


def process_at(proc: Path, pid: int) -> DaemonProcess | None:
    """The process that has this PID now; None: there is none, or it is dead and unreaped."""
    try:
        stat = (proc / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else DaemonProcess(pid, int(fields[19]))


class Daemons:
    """The daemons of this node, one per device that has shares."""

    def __init__(self, root: Path, source: SourceName, *, mount_shm: bool, proc: Path = Path("/proc")) -> None:
        self.root = root
        self._source = source
        self._mount_shm = mount_shm
        self._proc = proc

    def folders(self, uuid: str) -> DaemonFolders:
        return DaemonFolders(self.root, uuid)

    def control(self, uuid: str) -> MpsControl:
        return MpsControl(self.folders(uuid).pipe, control_program(self._source))

    def wanted(self) -> set[str]:
        return {path.stem for path in self.root.glob("*.json") if not path.name.startswith(".")}

    def running(self, uuid: str) -> DaemonProcess | None:
        """The daemon's process, if it lives."""
        recorded = _read(self.folders(uuid).daemon)
        return recorded if recorded and process_at(self._proc, recorded.pid) == recorded else None

    def settled(self, uuid: str) -> bool:
        """Whether the living daemon's settings were read back. A daemon that was restarted since is not (case F13)."""
        running = self.running(uuid)
        return running is not None and running == _read(self.folders(uuid).applied)

    def ensure(self, uuid: str, deadline: Deadline) -> None:
        """A daemon that answers and whose settings were read back; raises DeadlineError, MpsError."""
        folders = self.folders(uuid)
        for folder in (folders.pipe, folders.log, folders.shm):
            folder.mkdir(parents=True, exist_ok=True)
        if self._mount_shm and not folders.shm.is_mount():
            tmpfs.mount(folders.shm)
        if not folders.wish.exists():
            write_atomically(folders.wish, json.dumps({"uuid": uuid, "source": self._source}))
        if self.settled(uuid):
            # The very process whose settings were read back: asking it again would cost each share two more starts
            # of the control program. One that hangs is found by the watcher.
            return
        control = self.control(uuid)
        deadline.until(
            lambda: self.running(uuid) is not None and control.alive(),
            f"the MPS daemon of {uuid}: is mps-runner up on this node, and what says {folders.log}?",
        )
        self.apply(uuid)

    def apply(self, uuid: str) -> None:
        """Settings written and read back, unless that was done for this very process; raises MpsError."""
        if self.settled(uuid):
            return
        running = self.running(uuid)
        if running is None:
            raise MpsError(f"the MPS daemon of {uuid} is not running")
        self.control(uuid).open_to_clients()
        # A daemon that was replaced in between has another process: its settings are applied at the next look.
        write_atomically(self.folders(uuid).applied, json.dumps(vars(running)))

    def withdraw(self, uuid: str, deadline: Deadline) -> None:
        """No daemon and nothing of it left; raises DeadlineError. Works in any state of a set-up."""
        folders = self.folders(uuid)
        remove(folders.wish)
        deadline.until(lambda: self.running(uuid) is None, f"the end of the MPS daemon of {uuid}")
        if folders.shm.is_mount():
            tmpfs.unmount(folders.shm)
        if folders.base.exists():
            shutil.rmtree(folders.base, onerror=_unless_gone)

    def in_use(self, uuid: str) -> bool:
        """Whether the daemon has clients; it has none where it does not answer."""
        try:
            return bool(self.control(uuid).clients())
        except MpsError:
            return False

    def leftovers(self) -> set[str]:
        """Devices with folders or wishes."""
        folders = {path.name for path in self.root.glob("*-*") if path.is_dir()}
        return folders | self.wanted()


def _unless_gone(function: Any, path: str, error: Any) -> None:
    """The runner removes its own file in the same moment."""
    if not isinstance(error[1], FileNotFoundError):
        raise error[1]


def _read(path: Path) -> DaemonProcess | None:
    try:
        return DaemonProcess(**json.loads(path.read_text()))
    except FileNotFoundError:
        return None
