"""An MPS control program without a GPU: called as ``nvidia-cuda-mps-control`` is, with its silent failures.

``-f`` runs the daemon in the foreground on ``CUDA_MPS_PIPE_DIRECTORY``; without arguments the program sends the
command lines of its stdin to the daemon and prints what the daemon answers. Answers, exit codes and the odd values
that bad input leaves behind are those of control program 535.261.03 as observed (``tests/nvidia/test_mps.py`` runs
the same cases against both). Only the standard library is imported, so that a start costs little.

Two differences, both because there is no driver: the server is the daemon itself, and a client is a process that
holds a connection to ``<pipe>/control`` whose first line is ``client <pid> <percent>``. It gets one line back,
``ok <server pid> <effective percent>`` or ``error <CUDA code> <reason>``; when the connection closes, so should it
end. SIGUSR1 stands for a fatal GPU fault of one client: all clients are cut off.
"""

import contextlib
import fcntl
import os
import selectors
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable

_DEFAULT_PIPE = "/tmp/nvidia-mps"
_MAX_CLIENTS = 48
_GIB, _MIB = 1 << 30, 1 << 20
_ERROR_MAX_CLIENTS = 808
_ERROR_NOT_READY = 807
_ERROR_TERMINATED = 810


def pipe_directory() -> str:
    return os.environ.get("CUDA_MPS_PIPE_DIRECTORY", _DEFAULT_PIPE)


def number_prefix(text: str) -> float | None:
    """The leading number of ``text`` as C's strtof reads it: ``20x`` is 20, ``abc`` is nothing."""
    end = 0
    while end < len(text) and (text[end].isdigit() or text[end] == "." or (end == 0 and text[end] == "-")):
        end += 1
    with contextlib.suppress(ValueError):
        return float(text[:end])
    return None


def limit_bytes(text: str) -> int:
    """A memory limit as the real program reads it: leading integer, then G or else M. ``1.5G`` is 1M, ``-3G`` wraps."""
    end = 1 if text[:1] == "-" else 0
    while end < len(text) and text[end].isdigit():
        end += 1
    number = int(text[:end]) if text[:end].lstrip("-") else 0
    unit = _GIB if text[end : end + 1].upper() == "G" else _MIB
    return (number * unit) % (1 << 64)


class Limits:
    """Percentage and memory limits of the daemon (for the next server) or of a server (for new clients)."""

    def __init__(self, percent: float = 100.0, memory: dict[int, int] | None = None) -> None:
        self.percent = percent
        self.memory = dict(memory or {})

    def set_percent(self, text: str) -> str:
        number = number_prefix(text)
        if number is not None and 0.0 < number <= 100.0:
            self.percent = number
        return f"{self.percent:.1f}\n"

    def set_memory(self, device: str, text: str) -> str:
        if device.isdigit() and text:
            value = limit_bytes(text)
            self.memory.pop(int(device), None)
            if value:
                self.memory[int(device)] = value
        return ""

    def get_memory(self, device: str) -> str:
        value = self.memory.get(int(device)) if device.isdigit() else None
        if value is None:
            return ""
        return f"{value // _GIB}G\n" if value % _GIB == 0 else f"{value // _MIB}M\n"


class Client:
    def __init__(self, connection: socket.socket, pid: int, percent: float) -> None:
        self.connection = connection
        self.pid = pid
        self.percent = percent

    def cut(self, code: int, reason: str) -> None:
        with contextlib.suppress(OSError):
            self.connection.sendall(f"error {code} {reason}\n".encode())
        self.connection.close()


class Daemon:
    """The control daemon with its one server."""

    def __init__(self, listeners: list[socket.socket]) -> None:
        self.selector = selectors.DefaultSelector()
        for listener in listeners:
            self.selector.register(listener, selectors.EVENT_READ, self.accept)
        self.default = Limits()
        self.priority = 0
        self.server: Limits | None = None
        self.draining = False
        self.clients: dict[socket.socket, Client] = {}
        self.quitting: socket.socket | None = None
        self.deadline: float | None = None
        self.max_clients = int(os.environ.get("GPULET_SIMULATED_MAX_CLIENTS", str(_MAX_CLIENTS)))

    def run(self) -> int:
        """Serves until ``quit``; the exit code is 0 if no client had to be cut off."""
        while True:
            timeout = None if self.deadline is None else max(0.0, self.deadline - time.monotonic())
            for key, _ in self.selector.select(timeout):
                key.data(key.fileobj)
            if self.quitting is None:
                continue
            overdue = self.deadline is not None and time.monotonic() >= self.deadline
            if not self.clients or overdue:
                code = 1 if self.clients else 0
                self.cut_all(_ERROR_TERMINATED, "server was shut down")
                self.answer(self.quitting, "", code)
                return code

    def accept(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        log("Accepting connection...")
        self.selector.register(connection, selectors.EVENT_READ, self.greet)

    def greet(self, connection: socket.socket) -> None:
        """The first words of a connection say whether it is a client's or the control program's."""
        connection.settimeout(5.0)
        try:
            words = read_all(connection) if connection.recv(2, socket.MSG_PEEK) == b"ui" else read_line(connection)
        except OSError:
            words = ""
        self.selector.unregister(connection)
        first, *lines = words.splitlines() or [""]
        if first == "ui":
            self.commands(connection, lines)
        elif first.startswith("client "):
            self.join(connection, first.split())
        else:
            connection.close()

    def join(self, connection: socket.socket, words: list[str]) -> None:
        refusal = self.refusal(words)
        if refusal is not None:
            Client(connection, 0, 0).cut(*refusal)
            return
        if self.server is None:
            self.server = Limits(self.default.percent, self.default.memory)
            log(f"Starting new server {os.getpid()} for user {peer(connection)[1]}")
        # The kernel's word for who connects, in this daemon's PID namespace; 0 where that namespace cannot see it.
        pid = peer(connection)[0] or int(words[1])
        percent = min(float(words[2]), self.server.percent)
        self.clients[connection] = Client(connection, pid, percent)
        log(f"NEW CLIENT {pid} from user {peer(connection)[1]}: Server is ready")
        connection.sendall(f"ok {os.getpid()} {percent:g}\n".encode())
        connection.settimeout(None)
        self.selector.register(connection, selectors.EVENT_READ, self.left)

    def refusal(self, words: list[str]) -> tuple[int, str] | None:
        if len(words) != 3 or not words[1].isdigit() or not 0 < (number_prefix(words[2]) or 0) <= 100:
            return 1, "say: client <pid> <percent of 1 to 100>"
        if self.quitting is not None or self.draining:
            return _ERROR_NOT_READY, "server is shutting down"
        if len(self.clients) >= self.max_clients:
            return _ERROR_MAX_CLIENTS, f"server has {self.max_clients} clients, its maximum"
        return None

    def left(self, connection: socket.socket) -> None:
        if connection not in self.clients:
            return
        with contextlib.suppress(OSError):
            if connection.recv(256):
                return
        self.drop(connection).connection.close()

    def drop(self, connection: socket.socket) -> Client:
        client = self.clients.pop(connection)
        self.selector.unregister(connection)
        log(f"Client {client.pid} disconnected")
        if self.draining and not self.clients:
            self.server, self.draining = None, False
        return client

    def cut_all(self, code: int, reason: str) -> None:
        for connection in list(self.clients):
            self.drop(connection).cut(code, reason)

    def fault(self, wake: socket.socket) -> None:
        wake.recv(16)
        log("Server FAULT: a fatal GPU error ends every client of this device")
        self.cut_all(_ERROR_TERMINATED, "fatal GPU fault of a client on this device")

    def commands(self, connection: socket.socket, lines: list[str]) -> None:
        log("NEW UI")
        text = ""
        for line in lines:
            log(f"Cmd:{line}")
            words = line.split()
            if words[:1] == ["quit"]:
                with contextlib.suppress(OSError):
                    connection.sendall(text.encode())
                self.quitting = connection
                if words[1:2] == ["-t"] and words[2:]:
                    self.deadline = time.monotonic() + (number_prefix(words[2]) or 0)
                return
            text += self.command(line, words)
        self.answer(connection, text, 0)

    def answer(self, connection: socket.socket, text: str, code: int) -> None:
        with contextlib.suppress(OSError):
            connection.sendall(f"{text}\0{code}".encode())
        connection.close()
        log("UI closed")

    def command(self, line: str, words: list[str]) -> str:
        name, args = (words or [""])[0], [*words[1:], "", "", ""]
        if name in _DEFAULT_COMMANDS:
            return _DEFAULT_COMMANDS[name](self, args)
        if name in _SERVER_COMMANDS:
            server = args[0] if args[0].isdigit() else "0"
            if self.server is None or int(server) != os.getpid():
                return _NOT_FOUND.get(name, "Server {0} not found\n").format(server)
            return _SERVER_COMMANDS[name](self, self.server, args)
        return f'Unknown command "{line}"\n'

    def set_priority(self, text: str) -> str:
        if text not in ("0", "1"):
            return "Invalid priority value - must be 0 or 1!\n"
        self.priority = int(text)
        return ""

    def start_server(self) -> str:
        if self.server is None:
            self.server = Limits(self.default.percent, self.default.memory)
        return ""

    def shutdown(self, force: bool) -> str:
        if force:
            self.cut_all(_ERROR_TERMINATED, "server was shut down")
        if self.clients:
            self.draining = True
        else:
            self.server = None
        return ""

    def terminate(self, text: str) -> str:
        for connection, client in list(self.clients.items()):
            if str(client.pid) == text:
                self.drop(connection).cut(_ERROR_TERMINATED, "terminated by the control program")
                return "0\n"
        return f"Client {text} not found!\n1\n"

    def ps(self, args: list[str]) -> str:
        wanted = args[1] if args[0] == "-p" else ""
        if self.server is None:
            return f"Server {wanted} not found\nServer {wanted} not found\n\n" if wanted else "Server not found\n"
        if wanted and wanted != str(os.getpid()):
            return f"Server {wanted} not found\nServer {wanted} not found\n\n"
        device = os.environ.get("CUDA_VISIBLE_DEVICES", "")[:22]
        rows = ["PID       ID    SERVER    DEVICE             NAMESPACE  COMMAND"]
        rows += [f"{c.pid:<9} 0     {os.getpid():<9} {device:<18} 0          -" for c in self.clients.values()]
        return "\n".join(rows) + "\n"


_DEFAULT_COMMANDS: dict[str, Callable[[Daemon, list[str]], str]] = {
    "get_server_list": lambda d, a: f"{os.getpid()}\n" if d.server else "",
    "start_server": lambda d, a: d.start_server(),
    "ps": lambda d, a: d.ps(a),
    "get_default_active_thread_percentage": lambda d, a: f"{d.default.percent:.1f}\n",
    "set_default_active_thread_percentage": lambda d, a: d.default.set_percent(a[0]),
    "get_default_device_pinned_mem_limit": lambda d, a: d.default.get_memory(a[0]),
    "set_default_device_pinned_mem_limit": lambda d, a: d.default.set_memory(a[0], a[1]),
    "get_default_client_priority": lambda d, a: f"{d.priority}\n",
    "set_default_client_priority": lambda d, a: d.set_priority(a[0]),
}
_SERVER_COMMANDS: dict[str, Callable[[Daemon, Limits, list[str]], str]] = {
    "get_client_list": lambda d, s, a: "".join(f"{c.pid}\n" for c in d.clients.values()),
    "get_active_thread_percentage": lambda d, s, a: f"{s.percent:.1f}\n",
    "set_active_thread_percentage": lambda d, s, a: s.set_percent(a[1]),
    "get_device_pinned_mem_limit": lambda d, s, a: s.get_memory(a[1]),
    "set_device_pinned_mem_limit": lambda d, s, a: s.set_memory(a[1], a[2]),
    "terminate_client": lambda d, s, a: d.terminate(a[1]),
    "shutdown_server": lambda d, s, a: d.shutdown(a[1] == "-f"),
}
_NOT_FOUND = {"terminate_client": "Server {0} not found\nServer {0} not found!\n1\n"}


def log(text: str) -> None:
    print(f"[{time.strftime('%F %T')} Control {os.getpid()}] {text}", flush=True)


def peer(connection: socket.socket) -> tuple[int, int]:
    """(pid, uid) of who connected."""
    pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid


def read_line(connection: socket.socket) -> str:
    data = b""
    while not data.endswith(b"\n") and len(data) < 256:
        byte = connection.recv(1)
        if not byte:
            break
        data += byte
    return data.decode(errors="replace")


def read_all(connection: socket.socket) -> str:
    data = b""
    while part := connection.recv(65536):
        data += part
    return data.decode(errors="replace")


def listen(path: str, mode: int) -> socket.socket:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)  # noqa: PTH108 - pathlib would double the start time
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    os.chmod(path, mode)  # noqa: PTH101
    listener.listen(64)
    return listener


def daemon() -> int:
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
    text, _, code = read_all(connection).partition("\0")
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
