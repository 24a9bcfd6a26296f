"""`gpulet tune-server`: a TVM RPC server in a share. Restarted when it ends, ended with everything it started."""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time

from gpulet.api.workload import TuneSpec
from gpulet.nvidia.simulated_client import EXIT_CODE, connect_if_simulated

log = logging.getLogger("gpulet.tune-server")

_PAUSE_S = 2.0


class Supervisor:
    """One RPC server in a process group of its own: it forks a process a session, and none may survive us."""

    def __init__(self, spec: TuneSpec) -> None:
        self._command = _command(spec)
        self._process: subprocess.Popen[bytes] | None = None
        self._ending = threading.Event()

    def run(self) -> None:
        """Keeps a server running until ``end``: a crashing candidate or a long absence of the tracker ends it."""
        while not self._ending.is_set():
            self._process = subprocess.Popen(
                self._command, start_new_session=True, env=os.environ | {"TVM_NUM_THREADS": "1"}
            )
            code = self._process.wait()
            self._end_group()
            if not self._ending.wait(_PAUSE_S):
                log.warning("RPC server ended with code %s; starting it again", code)

    def end(self) -> None:
        self._ending.set()
        self._end_group()

    def _end_group(self) -> None:
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
            time.sleep(0.2)
            os.killpg(self._process.pid, signal.SIGKILL)


def main(spec: str) -> None:
    """Entry point. On a simulated device it lives and dies with the device's daemon."""
    logging.basicConfig(level="INFO", format="%(asctime)s %(name)s %(message)s")
    supervisor = Supervisor(TuneSpec.model_validate_json(spec))

    def lost(reason: str) -> None:
        log.error("%s", reason)
        supervisor.end()
        os._exit(EXIT_CODE)

    def stop(*_: object) -> None:
        supervisor.end()
        sys.exit(0)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    connection = connect_if_simulated(lost)
    try:
        supervisor.run()
    finally:
        if connection is not None:
            connection.close()


def _command(spec: TuneSpec) -> list[str]:
    return [sys.executable, "-m", "gpulet.tuning.rpc", spec.model_dump_json(by_alias=True, exclude_none=True)]
