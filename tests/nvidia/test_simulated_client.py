"""Clients of a simulated device: processes that live and die with the daemon."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from gpulet.nvidia.mps import MpsControl, control_program
from gpulet.nvidia.simulated_client import EXIT_CODE

Daemon = Callable[..., AbstractContextManager[subprocess.Popen[bytes]]]
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts client processes and ends those that are left."""
    started: list[subprocess.Popen[str]] = []

    def client(pipe: Path, percent: str = "40", **more: str) -> subprocess.Popen[str]:
        variables = {
            "GPULET_DEVICE_SOURCE": "simulated",
            "CUDA_MPS_PIPE_DIRECTORY": str(pipe),
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": percent,
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "gpulet.nvidia.simulated_client"],
            env=os.environ | variables | more,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield client
    for process in started:
        process.kill()
        process.communicate()


def _joined(process: subprocess.Popen[str]) -> dict[str, str]:
    assert process.stdout is not None
    seen: dict[str, str] = json.loads(process.stdout.readline())
    return seen


def _eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_client_is_listed_and_leaves_the_list_when_it_ends(simulated: MpsControl, start: Start) -> None:
    assert simulated.clients() == {}
    process = start(simulated.pipe)
    assert _joined(process)["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "40"
    (server,) = simulated.servers()
    assert simulated.clients() == {process.pid: server}
    assert f"{process.pid} " in simulated.run("ps")
    process.kill()
    _eventually(lambda: simulated.clients() == {})
    assert simulated.servers() == (server,), "the server stays when its clients leave"


def test_client_dies_with_its_daemon(daemon: Daemon, pipe: Path, start: Start) -> None:
    with daemon(control_program("simulated"), pipe) as process:
        client = start(pipe)
        _joined(client)
        process.kill()
        assert client.wait(timeout=5) == EXIT_CODE


@pytest.mark.case("A22")
def test_a_fault_ends_all_clients_of_the_device(daemon: Daemon, pipe: Path, start: Start) -> None:
    """Case A22: one fault domain."""
    with daemon(control_program("simulated"), pipe) as process:
        clients = [start(pipe), start(pipe, "30")]
        for client in clients:
            _joined(client)
        process.send_signal(signal.SIGUSR1)
        assert [client.wait(timeout=5) for client in clients] == [EXIT_CODE, EXIT_CODE]
        _joined(start(pipe))


@pytest.mark.case("A22")
def test_after_a_fault_nobody_is_taken_until_the_last_client_has_ended(
    daemon: Daemon, pipe: Path, start: Start
) -> None:
    """Case A22: a process that catches the error and lives on blocks the device's recovery."""
    from gpulet.nvidia import simulated_client

    with daemon(control_program("simulated"), pipe) as process:
        survivor = simulated_client._connect(str(pipe / "control"))
        survivor.sendall(f"client {os.getpid()} 50\n".encode())
        assert survivor.recv(64).startswith(b"ok")
        process.send_signal(signal.SIGUSR1)
        assert b"fatal GPU fault" in survivor.recv(256)
        _, said = start(pipe).communicate(timeout=10)
        assert "error 807" in said
        survivor.close()
        _joined(start(pipe))


def test_terminate_client_ends_that_client_alone(simulated: MpsControl, start: Start) -> None:
    first, second = start(simulated.pipe), start(simulated.pipe)
    _joined(first), _joined(second)
    (server,) = simulated.servers()
    assert simulated.terminate_client(server, first.pid)
    assert first.wait(timeout=5) == EXIT_CODE
    assert list(simulated.clients()) == [second.pid]
    assert not simulated.terminate_client(server, first.pid)


def test_the_lower_of_the_servers_and_the_clients_percentage_holds(simulated: MpsControl, start: Start) -> None:
    from gpulet.nvidia import simulated_client

    simulated.run("set_default_active_thread_percentage 30")
    connection = simulated_client._connect(str(simulated.pipe / "control"))
    connection.sendall(f"client {os.getpid()} 80\n".encode())
    assert connection.recv(64).decode().split()[2] == "30"
    connection.close()


@pytest.mark.case("G1")
@pytest.mark.parametrize("percent", ["0", "101", "-1", "nan", "abc"])
def test_client_with_a_bad_percentage_is_refused(simulated: MpsControl, start: Start, percent: str) -> None:
    """Case G1: never taken as unlimited."""
    process = start(simulated.pipe, percent)
    _, said = process.communicate(timeout=10)
    assert process.returncode == 1
    assert "refuses this client" in said
    assert simulated.clients() == {}


@pytest.mark.case("A13")
def test_more_clients_than_the_server_takes_are_refused(daemon: Daemon, pipe: Path, start: Start) -> None:
    """Case A13."""
    with daemon(control_program("simulated"), pipe, GPULET_SIMULATED_MAX_CLIENTS="1"):
        _joined(start(pipe))
        _, said = start(pipe).communicate(timeout=10)
        assert "error 808" in said


@pytest.mark.case("B9")
def test_client_without_a_daemon_ends_instead_of_running_unlimited(pipe: Path, start: Start) -> None:
    """Case B9."""
    process = start(pipe)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "is mps-runner up?" in said


def test_quit_waits_for_clients_and_forces_them_after_its_timeout(daemon: Daemon, pipe: Path, start: Start) -> None:
    with daemon(control_program("simulated"), pipe) as process:
        client = start(pipe)
        _joined(client)
        began = time.monotonic()
        MpsControl(pipe, control_program("simulated")).quit(timeout_s=1)
        assert time.monotonic() - began >= 1
        assert process.wait(timeout=5) == 1, "not all servers ended gracefully"
        assert client.wait(timeout=5) == EXIT_CODE


def test_on_a_real_device_the_helper_does_nothing(pipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpulet.nvidia.simulated_client import connect_if_simulated

    monkeypatch.setenv("GPULET_DEVICE_SOURCE", "nvml")
    assert connect_if_simulated() is None
