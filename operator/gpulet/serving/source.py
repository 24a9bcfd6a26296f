"""The model's own file as it lies on its volume now, which somebody may replace while we serve."""

import hashlib
import threading
from dataclasses import dataclass, field
from pathlib import Path


def digest_of(path: Path) -> str:
    """sha256:... of a file; raises OSError."""
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


@dataclass
class SourceFile:
    """Read again only when it looks changed, by one reader at a time; others meanwhile get what was read last."""

    path: Path
    _looks: tuple[int, int, int] | None = None
    _digest: str | None = None
    _reading: threading.Lock = field(default_factory=threading.Lock)

    def digest(self) -> str | None:
        """sha256:... of the file; None while it has never been read."""
        if self._reading.acquire(blocking=False):
            try:
                self._read()
            except OSError:
                pass  # a missing file says nothing about what it will be
            finally:
                self._reading.release()
        return self._digest

    def _read(self) -> None:
        found = self.path.stat()
        looks = (found.st_ino, found.st_size, found.st_mtime_ns)
        if looks != self._looks:
            self._digest, self._looks = digest_of(self.path), looks
