"""Clients of prepared shares as processes: who dies with whom, who is counted, who is ended before a kill."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpulet.agent.observe import clients_of, parent_of
from gpulet.agent.verify import PodUse, facts
from gpulet.agent.waiting import Deadline
from gpulet.nvidia.mps import daemon_command
from gpulet.nvidia.simulated_client import EXIT_CODE, _connect

Client = Callable[[str], subprocess.Popen[bytes]]

pytestmark = pytest.mark.usefixtures("runner")


@pytest.fixture
def client(rig: Any) -> Iterator[Client]:
    """``client(uid)``: a process with what the claim's container gets, joined to its device's daemon."""
    started: list[subprocess.Popen[bytes]] = []

    def start(uid: str) -> subprocess.Popen[bytes]:
        record = rig.shares().store.read(uid)
        variables = rig.environment_of(uid) | {
            "CUDA_MPS_PIPE_DIRECTORY": str(rig.daemons.folders(record.mps_uuid).pipe)
        }
        command = [sys.executable, "-m", "gpulet.nvidia.simulated_client"]
        process = subprocess.Popen(command, env=os.environ | variables, stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None and process.stdout.readline(), "the client joined"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.case("A22")
def test_a_fault_ends_every_client_of_that_device_and_no_other(rig: Any, client: Client) -> None:
    """Case A22: two shares of one GPU, and one of each of two MIG instances of another."""
    places = {"a": "gpu-1", "b": "gpu-1", "c": "gpu-0-mig-3g-40gb-4", "d": "gpu-0-mig-4g-40gb-0"}
    for uid, device in places.items():
        rig.prepare(rig.claim(uid, device, percent=50))
    clients = {uid: client(uid) for uid in places}

    def fault(uid: str) -> None:
        os.kill(rig.daemons.running(rig.shares().store.read(uid).mps_uuid).pid, signal.SIGUSR1)

    fault("a")
    assert [clients[uid].wait(timeout=10) for uid in ("a", "b")] == [EXIT_CODE] * 2
    assert [clients[uid].poll() for uid in ("c", "d")] == [None, None]
    fault("c")
    assert clients["c"].wait(timeout=10) == EXIT_CODE
    assert clients["d"].poll() is None, "an instance of one GPU is a fault domain of its own"
    assert client("b").poll() is None, "the device takes clients again"
    for uid in places:
        rig.unprepare(uid)


def _facts(rig: Any, uid: str, pod: str = "pod") -> dict[str, tuple[str, str]]:
    record = rig.shares().store.read(uid)
    seen = clients_of(rig.daemons, record.mps_uuid, Path("/proc"))
    found = facts(
        record,
        source="simulated",
        settled=rig.daemons.settled(record.mps_uuid),
        clients=[c.__class__(c.pid, pod, c.environment) for c in seen],
        uses=[PodUse(pod, (record.compute_percent * 5,))],
        millicores=500,
        environment={k: v for k, v in rig.environment_of(uid).items() if k != "CUDA_MPS_PIPE_DIRECTORY"},
    )
    return {f.type: (f.status, f.reason) for f in found}


@pytest.mark.case("B1", "B9")
def test_more_clients_than_claimed_are_found(rig: Any, client: Client) -> None:
    """Cases B1, B9: limits are per process, so a second process of a share for one has a second share."""
    rig.prepare(rig.claim(device="gpu-1", clients=1))
    assert _facts(rig, "c1")["Enforced"] == ("Unknown", "NotVerified")
    client("c1")
    assert _facts(rig, "c1")["Enforced"] == ("True", "CPUQuota")
    second = client("c1")
    assert _facts(rig, "c1")["Enforced"] == ("False", "Tampered")
    second.kill()
    Deadline(5).until(lambda: _facts(rig, "c1")["Enforced"] == ("True", "CPUQuota"), "it to be as claimed again")
    rig.unprepare("c1")


@pytest.mark.case("F13")
def test_a_daemons_restart_is_told_until_its_settings_are_read_back(rig: Any, client: Client) -> None:
    """Case F13."""
    record = rig.prepare(rig.claim(device="gpu-1"))
    client("c1")
    first = rig.daemons.running(record.mps_uuid)
    os.kill(first.pid, signal.SIGKILL)
    Deadline(10).until(lambda: rig.daemons.running(record.mps_uuid) not in (None, first), "the restart")
    assert _facts(rig, "c1") == {"Ready": ("False", "DaemonRestarted"), "Enforced": ("Unknown", "NotVerified")}
    Deadline(10).until(rig.daemons.control(record.mps_uuid).alive, "its answer")
    rig.daemons.control(record.mps_uuid).run("set_default_device_pinned_mem_limit 0 1G")
    rig.shares().settle({record.mps_uuid: record.gpu}, Deadline(5))
    assert rig.daemons.control(record.mps_uuid).default_memory_mib() is None, "applied again, and read back"
    assert _facts(rig, "c1")["Ready"] == ("True", "Prepared")
    rig.unprepare("c1")


def test_a_daemon_with_clients_is_never_swept(rig: Any, client: Client) -> None:
    """A claim file that got lost does not end a running model."""
    rig.prepare(rig.claim(device="gpu-1"))
    process = client("c1")
    (rig.state / "claims" / "c1.json").unlink()
    assert rig.shares().sweep(Deadline(5)) == ["c1"], "its CDI file alone: no container starts with it again"
    assert process.poll() is None
    process.kill()
    process.wait()
    Deadline(5).until(lambda: rig.shares().sweep(Deadline(5)) != [], "the daemon to be swept")
    assert rig.leftovers() == []


def test_the_daemons_default_never_throttles_a_share(rig: Any) -> None:
    """Case B2."""
    record = rig.prepare(rig.claim(device="gpu-1", percent=90))
    assert rig.daemons.control(record.mps_uuid).default_percent() == 100.0
    rig.unprepare("c1")


@pytest.mark.case("A7", "P6")
def test_the_daemon_runs_in_the_foreground_of_a_program_that_is_not_the_agent(rig: Any, runner: Any) -> None:
    """Cases A7, P6: -f, never -d, on simulated and real GPUs; its parent is the runner."""
    for source in ("simulated", "nvml"):
        assert "-f" in daemon_command(source) and "-d" not in daemon_command(source)  # type: ignore[arg-type]
    record = rig.prepare(rig.claim(device="gpu-1"))
    assert parent_of(Path("/proc"), rig.daemons.running(record.mps_uuid).pid) == runner.pid
    rig.unprepare("c1")


@pytest.mark.case("A6")
@pytest.mark.parametrize("user", [0, 1000, 1001])
def test_clients_of_any_user_join_one_daemon(rig: Any, user: int) -> None:
    """Case A6: pods of one GPU run under different users; the daemon's folders and sockets let them in."""
    assert "-multiuser-server" in daemon_command("nvml")
    record = rig.prepare(rig.claim(device="gpu-1"))
    rig.root.chmod(0o755)
    control = str(rig.daemons.folders(record.mps_uuid).pipe / "control")
    pid = os.fork()
    if pid == 0:
        os.setuid(user)
        connection = _connect(control, patience_s=1.0)
        connection.sendall(f"client {os.getpid()} 40\n".encode())
        os._exit(0 if connection.recv(64).startswith(b"ok ") else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    rig.unprepare("c1")


@pytest.mark.case("P5")
def test_a_workload_can_read_its_own_limits(rig: Any) -> None:
    """Case P5: the whole share's, beside what each process of it is held to."""
    rig.prepare(rig.claim(device="gpu-1", percent=50, memory="10Gi", clients=2))
    seen = rig.environment_of("c1")
    assert (seen["GPULET_COMPUTE_PERCENT"], seen["GPULET_MEMORY_MIB"]) == ("50", "10240")
    assert seen["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=5120M"
    rig.unprepare("c1")
