"""Deadlines of the kubelet's calls, and the lock that serialises them across two agents of one node."""

import fcntl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_POLL_S = 0.05
_LOCK_POLL_S = 0.01


class DeadlineError(RuntimeError):
    """Something did not come in time; the message names it."""


class Deadline:
    """A point in time that every wait of a call shares."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def remaining_s(self) -> float:
        return self._end - time.monotonic()

    def until(self, condition: Callable[[], bool], what: str, poll_s: float = _POLL_S) -> None:
        """Waits for the condition; raises DeadlineError that names ``what``."""
        while not condition():
            if self.remaining_s <= 0:
                raise DeadlineError(f"gave up waiting for {what}")
            time.sleep(poll_s)


_HERE: dict[str, threading.Lock] = {}
"""Of this process, by path: its threads queue without polling. Paths are few: the node's, and one for each GPU."""


@contextmanager
def lock(path: Path, deadline: Deadline) -> Iterator[None]:
    """Held by one call of one agent of the node; a killed holder's lock falls to the next (it is an flock)."""
    here = _HERE.setdefault(str(path), threading.Lock())
    if not here.acquire(timeout=max(0.0, deadline.remaining_s)):
        raise DeadlineError(f"gave up waiting for the lock {path}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:

            def taken() -> bool:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return False
                return True

            deadline.until(taken, f"the lock {path}, which another agent of this node holds", poll_s=_LOCK_POLL_S)
            yield
    finally:
        here.release()
