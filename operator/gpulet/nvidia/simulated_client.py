"""The stand-in for what libcuda does at a process's start under MPS: connect to the daemon, live and die with it.

Programs that run in a share call ``connect_if_simulated()`` once at start. On a real GPU it does nothing. Only the
standard library is imported: images without the node's libraries use it.
"""

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable

EXIT_CODE = 70
"""Of a process whose daemon went away: as a CUDA program that lost its MPS server cannot go on."""


class ShareUnavailableError(RuntimeError):
    """The daemon cannot be reached or does not take this client; the message says which and what to do."""


def connect_if_simulated(lost: Callable[[str], None] | None = None) -> socket.socket | None:
    """Joins the MPS daemon of this container's simulated device; None where the device is not simulated.

    ``lost`` is called with the reason, in a thread, when the daemon goes away, faults or ends this client; without it
    the process ends with EXIT_CODE. A program with a child of its own passes ``lost`` to end that first.
    Raises ShareUnavailableError: a program must not run on outside its share (failure case B9).
    """
    if os.environ.get("GPULET_DEVICE_SOURCE") != "simulated":
        return None
    path = os.path.join(os.environ["CUDA_MPS_PIPE_DIRECTORY"], "control")  # noqa: PTH118
    percent = os.environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"]
    connection = _connect(path)
    connection.sendall(f"client {os.getpid()} {percent}\n".encode())
    answer = connection.recv(256).decode()
    if not answer.startswith("ok "):
        raise ShareUnavailableError(
            f"MPS daemon at {path} refuses this client: {answer.strip() or 'connection closed'}"
        )
    threading.Thread(target=_watch, args=(connection, lost or _end), name="mps-client", daemon=True).start()
    return connection


def _connect(path: str, patience_s: float = 5.0) -> socket.socket:
    deadline = time.monotonic() + patience_s
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(path)
            return connection
        except OSError as error:
            connection.close()
            if time.monotonic() >= deadline:
                raise ShareUnavailableError(f"no MPS daemon at {path} ({error}): is mps-runner up?") from error
            time.sleep(0.2)


def _watch(connection: socket.socket, lost: Callable[[str], None]) -> None:
    said = ""
    try:
        while part := connection.recv(256):
            said += part.decode(errors="replace")
    except OSError as error:
        said = str(error)
    lost(said.strip() or "MPS daemon went away")


def _end(reason: str) -> None:
    print(f"gpulet: {reason}; this process ends with it", file=sys.stderr, flush=True)
    os._exit(EXIT_CODE)


def main() -> None:
    """Holds a connection and says what this container got: a probe of a share."""
    connect_if_simulated()
    seen = {k: v for k, v in sorted(os.environ.items()) if k.startswith(("CUDA_", "GPULET_"))}
    print(json.dumps(seen), flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
