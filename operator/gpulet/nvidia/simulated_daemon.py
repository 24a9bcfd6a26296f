"""The simulated MPS control daemon with its one server: who connects, and what each command answers."""

import contextlib
import os
import selectors
import socket
import struct
import time
from collections.abc import Callable

from gpulet.nvidia.simulated_limits import Limits, number_prefix

_MAX_CLIENTS = 48
_ERROR_MAX_CLIENTS = 808
_ERROR_NOT_READY = 807
_ERROR_TERMINATED = 810


class Client:
    def __init__(self, connection: socket.socket, pid: int, percent: float) -> None:
        self.connection = connection
        self.pid = pid
        self.percent = percent

    def tell(self, code: int, reason: str) -> None:
        """It cannot go on; its own end closes the connection."""
        with contextlib.suppress(OSError):
            self.connection.sendall(f"error {code} {reason}\n".encode())
            self.connection.shutdown(socket.SHUT_WR)

    def cut(self, code: int, reason: str) -> None:
        self.tell(code, reason)
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
        self.faulted = False
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
        if self.faulted:
            return _ERROR_NOT_READY, "server is in state FAULT until all clients of before have ended"
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
        self.faulted = self.faulted and bool(self.clients)
        if self.draining and not self.clients:
            self.server, self.draining = None, False
        return client

    def cut_all(self, code: int, reason: str) -> None:
        for connection in list(self.clients):
            self.drop(connection).cut(code, reason)

    def fault(self, wake: socket.socket) -> None:
        wake.recv(16)
        log("Server FAULT: a fatal GPU error ends every client of this device")
        self.faulted = bool(self.clients)
        for client in self.clients.values():
            client.tell(_ERROR_TERMINATED, "fatal GPU fault of a client on this device")

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
