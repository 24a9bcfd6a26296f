"""The control protocol: the same cases against the simulated program and NVIDIA's own, each in its real process."""

import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from gpulet.nvidia.mps import MpsControl, MpsError, memory_limit, parse_memory_limit, parse_percent, parse_pids

Daemon = Callable[..., AbstractContextManager[subprocess.Popen[bytes]]]

_GET_MEMORY = "get_default_device_pinned_mem_limit 0"
_SET_MEMORY = "set_default_device_pinned_mem_limit 0"


@pytest.mark.case("B5")
@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("10G", "10G\n"),
        ("512M", "512M\n"),
        ("3072M", "3G\n"),
        ("07M", "7M\n"),
        ("10GB", "10G\n"),
        ("3g", "3G\n"),
        ("100", "100M\n"),
        ("100X", "100M\n"),
        ("2G1", "2G\n"),
        ("1.5G", "1M\n"),
        ("-3G", "17179869181G\n"),
        ("G", ""),
        ("0G", ""),
        ("", ""),
    ],
)
def test_memory_limit_is_taken_or_twisted_without_a_word(control: MpsControl, value: str, kept: str) -> None:
    """Case B5: only reading back shows what became of a value."""
    assert control.run(f"{_SET_MEMORY} {value}") == ""
    assert control.run(_GET_MEMORY) == kept


@pytest.mark.case("B3")
def test_memory_limit_by_uuid_is_ignored(control: MpsControl) -> None:
    """Case B3: the daemon wants the ordinal in its own view."""
    control.run("set_default_device_pinned_mem_limit GPU-00000000-0000-0000-0000-000000000000 3G")
    assert control.default_memory_mib() is None


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("40", "40.0"),
        ("12.7", "12.7"),
        ("33.333", "33.3"),
        ("20x", "20.0"),
        ("140", "60.0"),
        ("0", "60.0"),
        ("abc", "60.0"),
    ],
)
def test_percentage_out_of_range_leaves_the_old_one(control: MpsControl, value: str, kept: str) -> None:
    control.run("set_default_active_thread_percentage 60")
    assert control.run(f"set_default_active_thread_percentage {value}") == f"{kept}\n"
    assert control.default_percent() == float(kept)


@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("nonsense", 'Unknown command "nonsense"\n'),
        ("", 'Unknown command ""\n'),
        ("get_server_list", ""),
        ("get_client_list 1234", "Server 1234 not found\n"),
        ("get_client_list", "Server 0 not found\n"),
        ("set_active_thread_percentage 1234 20", "Server 1234 not found\n"),
        ("terminate_client 1 2", "Server 1 not found\nServer 1 not found!\n1\n"),
        ("shutdown_server 77", "Server 77 not found\n"),
        ("ps", "Server not found\n"),
        ("set_default_client_priority 5", "Invalid priority value - must be 0 or 1!\n"),
        ("get_default_client_priority", "0\n"),
        ("get_default_active_thread_percentage", "100.0\n"),
    ],
)
def test_answers_and_exit_code_zero(program: list[str], control: MpsControl, command: str, output: str) -> None:
    variables = os.environ | {"CUDA_MPS_PIPE_DIRECTORY": str(control.pipe)}
    done = subprocess.run(program, input=f"{command}\n", env=variables, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == (output, 0)


def test_several_commands_in_one_session_answer_in_order(control: MpsControl) -> None:
    answer = control.run("set_default_active_thread_percentage 30\nget_default_client_priority")
    assert answer == "30.0\n0\n"


def test_unknown_command_is_an_error_for_us(control: MpsControl) -> None:
    with pytest.raises(MpsError, match="Unknown command"):
        control.run("get_server_list_typo")


@pytest.mark.case("B2")
def test_settings_are_opened_and_read_back(control: MpsControl) -> None:
    """Case B2: whatever the daemon was told before, its own limits end as none."""
    control.run("set_default_active_thread_percentage 25")
    control.run(f"{_SET_MEMORY} 4G")
    control.open_to_clients()
    assert (control.default_percent(), control.default_memory_mib()) == (100.0, None)


def test_settings_are_lost_with_the_daemon(daemon: Daemon, program: list[str], pipe: Path) -> None:
    for _ in range(2):
        with daemon(program, pipe):
            assert MpsControl(pipe, program).default_percent() == 100.0
            MpsControl(pipe, program).run("set_default_active_thread_percentage 25")


def test_second_daemon_on_the_same_pipe_is_refused(program: list[str], control: MpsControl) -> None:
    variables = os.environ | {"CUDA_MPS_PIPE_DIRECTORY": str(control.pipe)}
    done = subprocess.run([*program, "-f"], env=variables, capture_output=True, text=True, timeout=10, check=False)
    assert done.returncode == 1
    assert "An instance of this daemon is already running" in done.stdout + done.stderr


def test_no_daemon_is_an_error(program: list[str], pipe: Path) -> None:
    with pytest.raises(MpsError, match="Cannot find MPS control daemon process"):
        MpsControl(pipe, program).default_percent()


def test_quit_ends_the_daemon_and_a_stale_socket_does_not_stop_the_next(
    daemon: Daemon, program: list[str], pipe: Path
) -> None:
    control = MpsControl(pipe, program)
    with daemon(program, pipe) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert (pipe / "control").exists()
        assert not control.alive()
    with daemon(program, pipe) as process:
        control.quit(timeout_s=5)
        assert process.wait(timeout=5) == 0
        assert not control.alive()


@pytest.mark.case("B13", "G5")
@pytest.mark.parametrize("mib", [0, -1])
def test_memory_limit_of_nothing_never_leaves_the_renderer(mib: int) -> None:
    """Cases B13, G5: 0 would mean no limit."""
    with pytest.raises(ValueError, match="at least 1"):
        memory_limit(mib)


@pytest.mark.case("D11")
def test_memory_limit_is_a_whole_number_of_mib() -> None:
    """Case D11: exact at the boundary, never a fraction."""
    assert [memory_limit(n) for n in (1, 1023, 1024, 1536)] == ["1M", "1023M", "1024M", "1536M"]


def test_parsers() -> None:
    assert [parse_memory_limit(t) for t in ("", "3G\n", "512M\n")] == [None, 3072, 512]
    assert parse_pids("12\n345\n") == (12, 345)
    for parse, text in ((parse_memory_limit, "1.5G"), (parse_pids, "Server 7 not found\n"), (parse_percent, "")):
        with pytest.raises(MpsError):
            parse(text)
