"""The end of serving without a lost request: callers are given time to go before Triton ends."""

import time
from collections.abc import Callable

from gpulet.serving.triton import Traffic

LEAST_S = 3.0
"""Until every node's proxy has dropped this endpoint, requests still arrive."""
QUIET_S = 1.0
"""No request answered for so long, and none waiting: the callers are gone. What still runs is waited for later."""
MOST_S = 5.0
"""A caller that still sends when this and the longest request's time are over is cut off: the pod's grace period has to
hold Triton's own end, too."""
_POLL_S = 0.2


def wait_until_quiet(
    traffic: Callable[[], Traffic], *, least_s: float = LEAST_S, quiet_s: float = QUIET_S, most_s: float
) -> None:
    """Returns when no request came for ``quiet_s`` and ``least_s`` are over, at the latest after ``most_s``."""
    started = last_request = time.monotonic()
    finished = -1
    while (now := time.monotonic()) - started < most_s:
        try:
            seen = traffic()
        except OSError:
            return
        if seen.finished != finished or seen.pending:
            finished, last_request = seen.finished, now
        if now - started >= least_s and now - last_request >= quiet_s:
            return
        time.sleep(_POLL_S)
