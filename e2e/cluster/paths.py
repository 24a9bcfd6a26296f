"""Where things lie: the cache (may be deleted at any time) and the state of the clusters that run."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
# A node sees folders of its own at these places, so nothing that it needs from the machine may lie below them.
HIDDEN_FROM_NODES = (Path("/var"), Path("/run"))


def cache_root() -> Path:
    """The folder of everything that can be built again: binaries, base image, image layers, unpacked images."""
    chosen = os.environ.get("GPULET_CACHE") or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return _outside_hidden(Path(chosen).expanduser().absolute() / "gpulet", "GPULET_CACHE")


def state_root() -> Path:
    """The folder of what runs now: one folder a cluster, the saved sysctls, the locks."""
    chosen = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return _outside_hidden(Path(chosen).expanduser().absolute() / "gpulet", "XDG_STATE_HOME")


def _outside_hidden(path: Path, variable: str) -> Path:
    for hidden in HIDDEN_FROM_NODES:
        if path.is_relative_to(hidden):
            raise SystemExit(f"{path}: nodes cannot see what lies below {hidden}; set {variable} to another folder")
    return path


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file. The kernel lets go of it when the process ends, however it ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def write_atomically(path: Path, text: str, mode: int = 0o644) -> None:
    """Replace a file as a whole, so that a kill half-way leaves the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(text)
    fresh.chmod(mode)
    fresh.replace(path)
