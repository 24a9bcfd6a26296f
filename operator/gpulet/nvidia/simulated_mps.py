"""An MPS control program without a GPU: called as ``nvidia-cuda-mps-control`` is, with its silent failures.

``-f`` runs the daemon in the foreground on ``CUDA_MPS_PIPE_DIRECTORY``; without arguments the program sends the
command lines of its stdin to the daemon and prints what the daemon answers. Answers, exit codes and the odd values
that bad input leaves behind are those of control program 535.261.03 as observed (``tests/nvidia/test_mps.py`` runs
the same cases against both). Only the standard library is imported, so that a start costs little.

Two differences, both because there is no driver: the server is the daemon itself, and a client is a process that
holds a connection to ``<pipe>/control`` whose first line is ``client <pid> <percent>``. It gets one line back,
``ok <server pid> <effective percent>`` or ``error <CUDA code> <reason>``; when the connection closes, so should it
end. SIGUSR1 stands for a fatal GPU fault of one client: all clients are told, and nobody new is taken until the last of
them has ended, as the real server does in state FAULT.
"""

import contextlib
import fcntl
import os
import selectors
import signal
import socket
import sys

_DEFAULT_PIPE = "/tmp/nvidia-mps"


def pipe_directory() -> str:
    return os.environ.get("CUDA_MPS_PIPE_DIRECTORY", _DEFAULT_PIPE)


def listen(path: str, mode: int) -> socket.socket:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)  # noqa: PTH108 - pathlib would double the start time
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    os.chmod(path, mode)  # noqa: PTH101
    listener.listen(64)
    return listener


def daemon() -> int:
    # Run by its path it finds its neighbours from there; the control program alone needs none of them.
    sys.path.insert(0, os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..")))  # noqa: PTH100, PTH118, PTH120
    from gpulet.nvidia.simulated_daemon import Daemon, log

    pipe = pipe_directory()
    lock = os.open(os.path.join(pipe, "control_lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)  # noqa: PTH118
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("An instance of this daemon is already running", file=sys.stderr)
        return 1
    control = os.path.join(pipe, "control")  # noqa: PTH118
    log(f"Starting control daemon using socket {control}")
    process = Daemon([listen(control, 0o666), listen(f"{control}_privileged", 0o755)])
    wake, write = socket.socketpair()
    write.setblocking(False)
    signal.set_wakeup_fd(write.fileno())
    signal.signal(signal.SIGUSR1, lambda *_: None)
    process.selector.register(wake, selectors.EVENT_READ, process.fault)
    return process.run()


def user_interface() -> int:
    """Sends stdin's lines, prints the answer; 0 if the daemon could be talked to, whatever it said."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(os.path.join(pipe_directory(), "control"))  # noqa: PTH118
    except OSError:
        print("Cannot find MPS control daemon process", file=sys.stderr)
        return 1
    connection.sendall(b"ui\n" + sys.stdin.buffer.read())
    connection.shutdown(socket.SHUT_WR)
    answer = b""
    while part := connection.recv(65536):
        answer += part
    text, _, code = answer.decode(errors="replace").partition("\0")
    sys.stdout.write(text)
    return int(code or "1")


def main(arguments: list[str]) -> int:
    if arguments == ["-f"]:
        return daemon()
    if not arguments:
        return user_interface()
    print("usage: simulated_mps [-f]", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
