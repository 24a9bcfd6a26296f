"""Files that others read at any time."""

import contextlib
import os
import time
from pathlib import Path


def write_atomically(path: Path, text: str, *, make_folder: bool = True) -> None:
    """Readers see the old file or the whole new one, after a crash too. Makes the folder, if it may.

    Raises OSError that names the file; nothing of the new one is left then (a full disk must not stay fuller).
    """
    if make_folder:
        path.parent.mkdir(parents=True, exist_ok=True)
    new = _half(path)
    try:
        with new.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
        # A failed write() does not say which file it was.
        raise OSError(error.errno, error.strerror, str(path)) from error


def remove(path: Path) -> None:
    """The file, and what a writer that was killed in the middle left of it. None there is success."""
    for file in (path, _half(path)):
        # A read-only folder refuses to remove even what is not there.
        if file.exists():
            file.unlink(missing_ok=True)


def _half(path: Path) -> Path:
    return path.with_name(f".{path.name}.tmp")


def remove_halves(folder: Path, older_than_s: float = 60.0) -> list[str]:
    """Removes what killed writers left in a folder, which is old: a living writer's is not. Returns its names."""
    halves = [half for half in folder.glob(".*.tmp") if _age_s(half) >= older_than_s]
    for half in halves:
        half.unlink(missing_ok=True)
    return [half.name for half in halves]


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
