"""Control groups: what a process of a cluster is a member of decides whose it is.

A daemon enters a cgroup named after its cluster before it runs, and all that it starts is born there. So what belongs
to a cluster is known from the kernel alone, after any crash, and no process of anybody else can be meant: a pid that
was used again is not a member.
"""

import os
import signal
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

NEEDED_BY_KUBELET = {"cpu", "cpuset", "memory", "pids", "hugetlb"}


def hierarchies() -> list[Path]:
    """Where the cgroup file systems are mounted: one on cgroup v2, several on v1 and hybrid machines."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return sorted({Path(words[1]) for words in mounts if words[2] in ("cgroup", "cgroup2")})


def tracking_root() -> Path:
    """The hierarchy in which daemons are told apart: it needs no limits, so any that lists processes will do."""
    roots = hierarchies()
    if not roots:
        raise SystemExit("no cgroup file system is mounted; mount one at /sys/fs/cgroup")
    return next((root for root in roots if root.name == "pids"), roots[0])


def make_everywhere(name: str) -> None:
    """Make a cgroup in every hierarchy, as the kubelet's cgroupRoot has to exist in all of them."""
    for root in hierarchies():
        _delegate(root)
        (root / name).mkdir(exist_ok=True)
        # v1: a new cpuset is empty and no process can enter it.
        for setting in ("cpuset.cpus", "cpuset.mems"):
            if root.name == "cpuset" and (root / setting).exists():
                (root / name / setting).write_text((root / setting).read_text())


def _delegate(root: Path) -> None:
    # v2: a controller has to be switched on for the children of the root; the kubelet refuses a cgroup that lacks one.
    if (root / "cgroup.controllers").exists():
        offered = set((root / "cgroup.controllers").read_text().split())
        switched_on = set((root / "cgroup.subtree_control").read_text().split())
        for controller in NEEDED_BY_KUBELET & (offered - switched_on):
            (root / "cgroup.subtree_control").write_text(f"+{controller}")


def members(name: str) -> set[int]:
    """Pids of all processes in a cgroup or below it, in any hierarchy."""
    found: set[int] = set()
    for root in hierarchies():
        for file in [root / name / "cgroup.procs", *(root / name).rglob("cgroup.procs")]:
            try:
                found.update(int(pid) for pid in file.read_text().split())
            except OSError:  # went away while we looked, or is of a kind without processes
                continue
    return found


def kill_members(names: list[str], timeout_s: float = 20.0) -> None:
    """Kill all processes in these cgroups, also those that are born meanwhile.

    Raises TimeoutError naming the pids that stay.
    """
    deadline = monotonic() + timeout_s
    while alive := set().union(*(members(name) for name in names)):
        if monotonic() > deadline:
            raise TimeoutError(f"processes {sorted(alive)} of cgroups {', '.join(names)} do not end")
        for pid in alive:
            send(pid, signal.SIGKILL)
        sleep(0.05)


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal; a process that is gone already is no error."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def remove_everywhere(name: str) -> None:
    """Remove an empty cgroup and all below it, in every hierarchy."""
    for root in hierarchies():
        below = sorted((path for path in (root / name).rglob("*") if path.is_dir()), key=lambda path: -len(path.parts))
        for folder in [*below, root / name]:
            _remove(folder)


def _remove(folder: Path) -> None:
    # The kernel lets go of a killed process's cgroup a moment after the process.
    for _ in range(100):
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            sleep(0.05)
    if folder.exists():
        raise RuntimeError(f"cgroup {folder}: cannot be removed, something is still in it")
