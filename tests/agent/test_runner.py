"""The MPS runner as a process: daemons as the wish files say, whatever dies."""

import json
import os
import signal
import subprocess
from typing import Any

import pytest

from gpulet.agent.daemons import process_at
from gpulet.agent.waiting import Deadline
from gpulet.nvidia.mps import MpsControl, control_program

UUID = "GPU-00000000-0000-0000-0000-000000000001"


def wish(rig: Any, uuid: str = UUID) -> None:
    folders = rig.daemons.folders(uuid)
    for folder in (folders.pipe, folders.log, folders.shm):
        folder.mkdir(parents=True, exist_ok=True)
    folders.wish.write_text(json.dumps({"uuid": uuid, "source": "simulated"}))


def up(rig: Any, uuid: str = UUID) -> Any:
    """Waits for the daemon; its process."""
    Deadline(10).until(lambda: rig.daemons.running(uuid) and rig.daemons.control(uuid).alive(), "the daemon")
    return rig.daemons.running(uuid)


def gone(rig: Any, uuid: str = UUID) -> None:
    Deadline(10).until(lambda: rig.daemons.running(uuid) is None, "the daemon's end")


@pytest.mark.case("E10")
def test_daemons_come_and_go_with_their_wishes(rig: Any, runner: Any) -> None:
    """Case E10: one name is the beginning of the other."""
    for uuid in (UUID, f"{UUID}0"):
        wish(rig, uuid)
    first, second = up(rig), up(rig, f"{UUID}0")
    rig.daemons.folders(UUID).wish.unlink()
    gone(rig)
    assert rig.daemons.running(f"{UUID}0") == second
    assert first.pid != second.pid


def test_the_daemon_sees_its_device_alone(rig: Any, runner: Any) -> None:
    wish(rig)
    environment = open(f"/proc/{up(rig).pid}/environ").read().split("\0")  # noqa: SIM115, PTH123
    assert f"CUDA_VISIBLE_DEVICES={UUID}" in environment


def test_a_daemon_that_keeps_dying_is_started_with_growing_pauses(rig: Any, runner: Any) -> None:
    wish(rig)
    starts = []
    for _ in range(3):
        process = up(rig)
        starts.append(process.started_ticks)
        os.kill(process.pid, signal.SIGKILL)
        gone(rig)
    first, second = (starts[i + 1] - starts[i] for i in (0, 1))
    assert second > first >= 0.5 * os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_daemon_outlives_its_runner(rig: Any, runner: Any, number: signal.Signals) -> None:
    wish(rig)
    process = up(rig)
    runner.send_signal(number)
    runner.wait(timeout=20)
    Deadline(5).until(lambda: process_at(rig.daemons._proc, process.pid) != process, "the daemon's end")
    next_runner = rig.start_runner()
    assert up(rig) != process, "and the next one starts it again over the stale socket"
    next_runner.terminate()
    next_runner.wait(timeout=20)


@pytest.mark.case("A9")
def test_a_foreign_daemon_on_the_pipe_is_left_alone(rig: Any, runner: Any) -> None:
    """Case A9: reported by never becoming ours, and never killed."""
    folders = rig.daemons.folders(UUID)
    folders.pipe.mkdir(parents=True)
    folders.log.mkdir()
    program = control_program("simulated")
    variables = os.environ | {"CUDA_MPS_PIPE_DIRECTORY": str(folders.pipe)}
    foreign = subprocess.Popen([*program, "-f"], env=variables, stdout=subprocess.DEVNULL)
    try:
        Deadline(5).until(MpsControl(folders.pipe, program).alive, "the foreign daemon")
        wish(rig)
        with pytest.raises(Exception, match="gave up"):
            Deadline(2).until(lambda: rig.daemons.running(UUID) is not None, "ours")
        assert foreign.poll() is None
        assert MpsControl(folders.pipe, program).alive()
    finally:
        foreign.kill()
        foreign.wait()
    up(rig)


def test_a_log_that_grows_is_cut(rig: Any, runner: Any) -> None:
    wish(rig)
    up(rig)
    log = rig.daemons.folders(UUID).log / "daemon.log"
    with log.open("a") as file:
        file.write("x" * (1 << 20) + "\n")
    Deadline(5).until(lambda: log.stat().st_size < 1 << 20, "the cut")
    rig.daemons.control(UUID).default_percent()
    assert log.stat().st_size > 0, "the daemon goes on writing"


def test_a_wish_that_is_taken_back_while_the_daemon_starts_ends_it(rig: Any, runner: Any) -> None:
    """A pod that is deleted at once: the daemon cannot hear yet that it is to quit, and is asked again."""
    for _ in range(5):
        wish(rig)
        Deadline(10).until(lambda: rig.daemons.running(UUID) is not None, "the daemon's process", poll_s=0.001)
        rig.daemons.folders(UUID).wish.unlink()
        gone(rig)
