"""The console script: what holds before anything is imported."""

import os
import signal

_TERMINATED = 128 + signal.SIGTERM


def main() -> None:
    """SIGTERM ends the program from its first moment; programs that have something to end set their own handler later.

    PID 1 of a container has no default action for it: a pod that is deleted while its program is being imported
    (seconds, in a small share of CPU) would stay for its whole grace period.
    """
    signal.signal(signal.SIGTERM, lambda *_: os._exit(_TERMINATED))
    from gpulet.cli.main import main as run

    run()
