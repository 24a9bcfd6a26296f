"""The long-running programs of a cluster: start, find again, stop."""

import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from e2e.cluster import cgroups
from e2e.cluster.commands import wait_until
from e2e.cluster.layout import Layout

# Enters its cgroup and leaves its pid before it becomes the program. When the cgroup is gone (a `down` came between),
# it ends here. setsid --fork makes it nobody's child, so `up` may end or be killed.
ENTER = 'echo 0 > "$1" && echo $$ > "$2" && shift 2 && exec "$@"'


def start(cluster: Layout, name: str, argv: Sequence[str | Path]) -> None:
    """Start a program as the daemon ``name`` of a cluster, unless it runs already. Its output goes to logs/NAME.log."""
    if running(cluster, name):
        return
    cgroup = _cgroup(cluster, name)
    cgroup.mkdir(parents=True, exist_ok=True)
    cluster.logs.mkdir(parents=True, exist_ok=True)
    with (cluster.logs / f"{name}.log").open("ab") as log:
        subprocess.run(
            ["setsid", "--fork", "sh", "-c", ENTER, name, cgroup / "cgroup.procs", _pid_file(cluster, name), *argv],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            check=True,
        )
    wait_until(f"{name} of cluster {cluster.name} to start", lambda: running(cluster, name) is not None, 5, 0.02)


def running(cluster: Layout, name: str) -> int | None:
    """Pid of a daemon's main process, or None. Membership in the daemon's cgroup proves that the pid is still it."""
    with suppress(OSError, ValueError):
        pid = int(_pid_file(cluster, name).read_text())
        if str(pid) in (_cgroup(cluster, name) / "cgroup.procs").read_text().split():
            return pid
    return None


def stop(cluster: Layout, name: str, timeout_s: float = 10.0, *, gently: bool = True) -> None:
    """End a daemon's main process, gently first. What it started (containerd: the pods) lives on."""
    for number in (signal.SIGTERM, signal.SIGKILL) if gently else (signal.SIGKILL,):
        if (pid := running(cluster, name)) is None:
            return
        cgroups.send(pid, number)
        with suppress(TimeoutError):
            wait_until(name, lambda: running(cluster, name) is None, timeout_s, 0.05)
    if running(cluster, name) is not None:
        raise TimeoutError(f"{name} of cluster {cluster.name} does not end")


def last_words(cluster: Layout, name: str) -> str:
    """The end of a daemon's log, for an error message."""
    log = cluster.logs / f"{name}.log"
    return log.read_text(errors="replace")[-1500:] if log.exists() else ""


def _cgroup(cluster: Layout, name: str) -> Path:
    return cgroups.tracking_root() / cluster.cgroup / name


def _pid_file(cluster: Layout, name: str) -> Path:
    return cluster.folder / f"{name}.pid"
