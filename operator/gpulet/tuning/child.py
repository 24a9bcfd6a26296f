"""A program that ends when it is told to, whatever its code is doing."""

import ctypes
import os
import signal
import sys
from contextlib import suppress
from types import FrameType

_PR_SET_PDEATHSIG = 1
_TERMINATED = 128 + signal.SIGTERM


def go_on_in_a_child() -> None:
    """Returns in a child; the caller's process waits for it, ends as it ends, and kills it at SIGTERM or SIGINT.

    PID 1 of a container has no default action for signals, and a Python handler runs only between two bytecodes: a
    call into TVM or an import of it takes seconds, so that each deletion of a pod waited for its whole grace period.
    What is measured is on disk, and what is stored is renamed into place: nothing needs a farewell.
    Call it before the first thread and before TVM is imported.
    """
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        # Its parent may be killed as well.
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(_TERMINATED)
        return
    # By both: whichever runs first, a signal from now on reaches the whole group.
    with suppress(OSError):
        os.setpgid(child, child)

    def end(*_: int | FrameType | None) -> None:
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        os._exit(_TERMINATED)

    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, end)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    sys.exit(code if code >= 0 else 128 - code)
