"""Client of an MPS control program (protocol v2): one command a call, output parsed, every setting read back.

``nvidia-cuda-mps-control`` exits 0 for unknown commands and for values it does not take, and takes ``1.5G`` for 1M:
its exit code proves nothing, only reading back does.
"""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from gpulet.nvidia import simulated_mps

SourceName = Literal["simulated", "nvml"]

_COMMAND_TIMEOUT_S = 10.0
_LIMIT = re.compile(r"^([0-9]+)([GM])$")


class MpsError(RuntimeError):
    """The daemon cannot be talked to, or did not take a setting; the message says what to look at."""


def control_program(source: SourceName) -> list[str]:
    """The control program's argv, to which options are appended.

    The simulated one runs by its path in isolated mode: it needs the standard library only, and starts in 15 ms.
    """
    if source == "simulated":
        return [sys.executable, "-I", "-S", simulated_mps.__file__]
    return ["nvidia-cuda-mps-control"]


def daemon_command(source: SourceName) -> list[str]:
    """The daemon in the foreground; on a real GPU for clients of several users, as pods run under different ones."""
    options = ["-f"] if source == "simulated" else ["-f", "-multiuser-server"]
    return [*control_program(source), *options]


def daemon_environment(pipe: Path, log: Path, uuid: str) -> dict[str, str]:
    """What a daemon for one device needs in its environment."""
    return {
        "CUDA_MPS_PIPE_DIRECTORY": str(pipe),
        "CUDA_MPS_LOG_DIRECTORY": str(log),
        "CUDA_VISIBLE_DEVICES": uuid,
    }


def memory_limit(mib: int) -> str:
    """A memory limit as MPS takes it: a whole number and M. Raises ValueError below 1 (0 would mean unlimited)."""
    if mib < 1:
        raise ValueError(f"memory limit of {mib} MiB: MPS takes 0 for no limit; give at least 1 MiB")
    return f"{mib}M"


def parse_memory_limit(output: str) -> int | None:
    """MiB of what ``get_default_device_pinned_mem_limit`` prints; None: no limit is set. Raises MpsError."""
    text = output.strip()
    if not text:
        return None
    found = _LIMIT.match(text)
    if found is None:
        raise MpsError(f"MPS control printed {text!r} where a memory limit was expected")
    return int(found[1]) * (1024 if found[2] == "G" else 1)


def parse_percent(output: str) -> float:
    """The number of what ``get_default_active_thread_percentage`` prints; raises MpsError."""
    try:
        return float(output.strip())
    except ValueError:
        raise MpsError(f"MPS control printed {output.strip()!r} where a percentage was expected") from None


def parse_pids(output: str) -> tuple[int, ...]:
    """PIDs, one a line; raises MpsError on anything else, such as ``Server 7 not found``."""
    lines = output.split("\n")
    if any(line and not line.isdigit() for line in lines):
        raise MpsError(f"MPS control printed {output.strip()!r} where PIDs were expected")
    return tuple(int(line) for line in lines if line)


@dataclass(frozen=True)
class MpsControl:
    """Speaks to the daemon of one pipe directory."""

    pipe: Path
    program: list[str] = field(default_factory=lambda: control_program("nvml"))

    def run(self, command: str) -> str:
        """What the daemon answers to one command; raises MpsError if there is no daemon or it does not know it."""
        environment: Mapping[str, str] = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe)}
        try:
            done = subprocess.run(
                self.program,
                input=f"{command}\n",
                env=environment,
                capture_output=True,
                text=True,
                timeout=_COMMAND_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise MpsError(f"MPS control {command!r} on {self.pipe}: {error}") from error
        if done.returncode != 0 and not command.startswith("quit"):
            raise MpsError(f"MPS control {command!r} on {self.pipe}: {done.stderr.strip() or done.stdout.strip()}")
        if done.stdout.startswith("Unknown command"):
            raise MpsError(f"MPS control {command!r} on {self.pipe}: {done.stdout.strip()}")
        return done.stdout

    def alive(self) -> bool:
        """Whether a daemon answers."""
        try:
            self.default_percent()
        except MpsError:
            return False
        return True

    def default_percent(self) -> float:
        return parse_percent(self.run("get_default_active_thread_percentage"))

    def default_memory_mib(self) -> int | None:
        """Limit of the daemon's only device (ordinal 0; the UUID form is ignored by some releases, case B3)."""
        return parse_memory_limit(self.run("get_default_device_pinned_mem_limit 0"))

    def open_to_clients(self) -> None:
        """Daemon default 100 % and no memory limit: uneven shares come with each client. Read back, else MpsError.

        The lower of the daemon's and the client's limit holds, so any lower default would throttle a larger share
        (failure case B2).
        """
        self.run("set_default_active_thread_percentage 100")
        self.run("set_default_device_pinned_mem_limit 0 0G")
        percent, memory_mib = self.default_percent(), self.default_memory_mib()
        if percent != 100.0 or memory_mib is not None:
            raise MpsError(
                f"MPS daemon on {self.pipe} did not take its settings: percentage is {percent:g} (set 100), memory "
                f"limit {memory_mib} MiB (set none); see its control.log"
            )

    def servers(self) -> tuple[int, ...]:
        """PIDs of the daemon's servers; none before the first client."""
        return parse_pids(self.run("get_server_list"))

    def clients(self) -> dict[int, int]:
        """Server PID by client PID, in the PID namespace of the daemon."""
        return {client: server for server in self.servers() for client in self._clients_of(server)}

    def _clients_of(self, server: int) -> tuple[int, ...]:
        output = self.run(f"get_client_list {server}")
        # A server may end between the two commands; its clients ended with it.
        return () if "not found" in output else parse_pids(output)

    def terminate_client(self, server: int, client: int) -> bool:
        """Ends the client's outstanding work, so that it may be killed; whether the daemon says it did."""
        return self.run(f"terminate_client {server} {client}").split("\n")[-2:-1] == ["0"]

    def quit(self, timeout_s: int) -> None:
        """Ends the daemon; servers that still run after ``timeout_s`` are ended by force."""
        self.run(f"quit -t {timeout_s}")
