"""Files that others read at any time."""

import os
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Readers see the old file or the whole new one, after a crash too. The folder is made if it is not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.tmp")
    with new.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
