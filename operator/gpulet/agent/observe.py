"""What can be seen of the shares' processes on the node."""

import re
from pathlib import Path

from gpulet.agent.daemons import Daemons
from gpulet.agent.verify import ClientSeen
from gpulet.nvidia.mps import MpsError

# Of the kubelet's cgroup drivers: pod<uid>, or pod<uid with underscores>.slice.
_POD = re.compile(r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})")


def pod_of(proc: Path, pid: int) -> str | None:
    """UID of the pod that a process belongs to, by its cgroups; None: of none, or gone."""
    try:
        found = _POD.search((proc / str(pid) / "cgroup").read_text())
    except OSError:
        return None
    return found[1].replace("_", "-") if found else None


def parent_of(proc: Path, pid: int) -> int | None:
    """PID of a process's parent; None: it is gone."""
    try:
        stat = (proc / str(pid) / "stat").read_text()
    except OSError:
        return None
    # The program's name, in parentheses, may hold anything.
    return int(stat.rpartition(")")[2].split()[1])


def environment_of(proc: Path, pid: int) -> dict[str, str] | None:
    """The environment a process was started with; None if it cannot be read."""
    try:
        entries = (proc / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return None
    return dict(entry.decode(errors="replace").split("=", 1) for entry in entries if b"=" in entry)


def clients_of(daemons: Daemons, uuid: str, proc: Path) -> list[ClientSeen]:
    """The processes in the list of a device's daemon; none while it does not answer."""
    try:
        pids = daemons.control(uuid).clients()
    except MpsError:
        return []
    return [ClientSeen(pid, pod_of(proc, pid), environment_of(proc, pid)) for pid in pids]
