"""The MPS runner: one foreground control daemon for each wish file, in a pod that outlives the agent's.

A wish file comes: the daemon starts; it dies: it starts again, after a growing pause; the file goes: it quits.
"""

import contextlib
import ctypes
import errno
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType

from gpulet.agent import tmpfs
from gpulet.agent.daemons import DaemonFolders, process_at
from gpulet.agent.files import write_atomically
from gpulet.nvidia.mps import SourceName, control_program, daemon_command, daemon_environment

_LOG = logging.getLogger("gpulet.mps-runner")
_TICK_S = 0.25
_BACKOFF_S = (0.5, 30.0)
"""First and longest pause before a daemon is started again."""
_STABLE_S = 60.0
"""A daemon that ran this long starts with the first pause again."""
_QUIT_S = 10
_KILL_S = 60.0
_LOG_BYTES = 1 << 20
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


@dataclass
class _Daemon:
    """One wish and its process."""

    folders: DaemonFolders
    source: SourceName
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    pause_s: float = _BACKOFF_S[0]
    next_start: float = 0.0
    quit_since: float | None = None
    quitter: subprocess.Popen[bytes] | None = field(default=None, repr=False)


class Runner:
    """Keeps the processes of ``root`` as its wish files say."""

    def __init__(self, root: Path, proc: Path = Path("/proc")) -> None:
        self._root = root
        self._proc = proc
        self._daemons: dict[str, _Daemon] = {}

    def tick(self, *, stop: bool = False) -> bool:
        """One look at wishes and processes; with ``stop`` nothing is wished. Returns whether any process is left."""
        wished = {} if stop else self._wishes()
        for uuid, source in wished.items():
            if uuid not in self._daemons:
                self._daemons[uuid] = _Daemon(DaemonFolders(self._root, uuid), source)
        for uuid, daemon in list(self._daemons.items()):
            try:
                self._look_at(uuid, daemon, uuid in wished)
            except OSError as error:
                # One device's folder that cannot be used (a full disk) must not end the others' daemons.
                _LOG.error("MPS daemon of %s: %s", uuid, error)
                self._pause(daemon)
        return bool(self._daemons)

    def _look_at(self, uuid: str, daemon: _Daemon, wished: bool) -> None:
        self._reap(daemon)
        if wished and daemon.quit_since is None:
            if daemon.process is None and time.monotonic() >= daemon.next_start:
                self._start(daemon)
            self._trim_log(daemon)
        elif daemon.process is None:
            del self._daemons[uuid]
        else:
            self._quit(daemon)

    def _wishes(self) -> dict[str, SourceName]:
        wishes = {}
        for path in self._root.glob("[!.]*.json"):
            with contextlib.suppress(FileNotFoundError):
                wishes[path.stem] = json.loads(path.read_text())["source"]
        return wishes

    def _start(self, daemon: _Daemon) -> None:
        folders = daemon.folders
        if not folders.log.is_dir():
            # The wish was read just before the agent took it back with all folders.
            self._pause(daemon)
            return
        if _answers(folders.pipe / "control"):
            _LOG.error("another MPS daemon holds %s; it is left alone", folders.pipe)
            self._pause(daemon)
            return
        for name in ("control", "control_privileged"):
            (folders.pipe / name).unlink(missing_ok=True)
        with (folders.log / "daemon.log").open("ab") as log:
            try:
                daemon.process = subprocess.Popen(
                    daemon_command(daemon.source),
                    env=os.environ | daemon_environment(folders.pipe, folders.log, folders.uuid),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    preexec_fn=partial(_become_daemon, folders.shm),
                )
            except (OSError, subprocess.SubprocessError) as error:
                _LOG.error("cannot start the MPS daemon of %s: %s", folders.uuid, error)
                self._pause(daemon)
                return
        daemon.started = time.monotonic()
        process = process_at(self._proc, daemon.process.pid)
        if process is not None:
            # A wish that was taken back in this moment took the folder with it, and it must not come back.
            with contextlib.suppress(FileNotFoundError):
                write_atomically(folders.daemon, json.dumps(vars(process)), make_folder=False)
        _LOG.info("MPS daemon of %s started, pid %d", folders.uuid, daemon.process.pid)

    def _reap(self, daemon: _Daemon) -> None:
        if daemon.process is None or daemon.process.poll() is None:
            return
        _LOG.info("MPS daemon of %s ended with %s", daemon.folders.uuid, daemon.process.returncode)
        daemon.process = None
        daemon.folders.daemon.unlink(missing_ok=True)
        if daemon.quitter is not None:
            daemon.quitter.wait()
            daemon.quit_since, daemon.quitter = None, None
            return
        if time.monotonic() - daemon.started > _STABLE_S:
            daemon.pause_s = _BACKOFF_S[0]
        self._pause(daemon)

    def _pause(self, daemon: _Daemon) -> None:
        daemon.next_start = time.monotonic() + daemon.pause_s
        daemon.pause_s = min(daemon.pause_s * 2, _BACKOFF_S[1])

    def _quit(self, daemon: _Daemon) -> None:
        assert daemon.process is not None
        now = time.monotonic()
        if daemon.quit_since is None:
            daemon.quit_since = now
            daemon.quitter = _ask_to_quit(daemon)
        elif now - daemon.quit_since > _KILL_S or not daemon.folders.pipe.exists():
            # Without its pipe nobody can reach it any more, the control program included.
            _LOG.warning("MPS daemon of %s did not quit in %g s: killed", daemon.folders.uuid, now - daemon.quit_since)
            daemon.process.kill()
        elif daemon.quitter is not None and daemon.quitter.poll():
            # A daemon whose wish was taken back while it started did not hear it.
            daemon.quitter = _ask_to_quit(daemon)

    def _trim_log(self, daemon: _Daemon) -> None:
        log = daemon.folders.log / "daemon.log"
        if log.exists() and log.stat().st_size > _LOG_BYTES:
            os.truncate(log, 0)


def _ask_to_quit(daemon: _Daemon) -> subprocess.Popen[bytes]:
    quitter = subprocess.Popen(
        control_program(daemon.source),
        env=os.environ | {"CUDA_MPS_PIPE_DIRECTORY": str(daemon.folders.pipe)},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert quitter.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        quitter.stdin.write(f"quit -t {_QUIT_S}\n".encode())
        quitter.stdin.close()
    return quitter


def _become_daemon(shm: Path) -> None:
    """In the child: a runner that is killed leaves no daemon behind; /dev/shm is the one that the clients get."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if shm.is_mount():
        tmpfs.see_as_dev_shm(shm)


def _answers(control: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(control))
        except OSError as error:
            # The real daemon's socket is of another type: it refuses this one, but it is there.
            return error.errno == errno.EPROTOTYPE
    return True


def main(root: Path) -> None:
    """Runs until SIGTERM; then every daemon is told to quit, and waited for."""
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(asctime)s %(levelname)s %(message)s")
    stopping = False

    def stop(signum: int, frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    root.mkdir(parents=True, exist_ok=True)
    runner = Runner(root)
    _LOG.info("keeping one MPS daemon for each file in %s", root)
    while not stopping:
        runner.tick()
        time.sleep(_TICK_S)
    while runner.tick(stop=True):
        time.sleep(_TICK_S)
