"""The agent killed between any two of its effects, then started again: the same end, and nothing left behind.

No seam in the product: the interpreter tells (audit events) before each effect on a file and before each program that
is started, and system calls and driver calls that it does not tell of are wrapped in the process that is to die.
"""

import json
import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml
import pytest

from gpulet.agent import tmpfs
from gpulet.agent.waiting import Deadline
from tests.agent.nvml_rig import NvmlRig

WHOLE, PLACEMENT = "gpu-1", "gpu-0-mig-3g-40gb-4"
# Each takes a minute or two: each source and each kind of device every time, the other two pairs in `make soak`.
PLACES = [
    ("simulated", WHOLE),
    ("nvml", PLACEMENT),
    pytest.param("simulated", PLACEMENT, marks=pytest.mark.soak),
    pytest.param("nvml", WHOLE, marks=pytest.mark.soak),
]
_CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "subprocess.Popen"}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_DRIVER = re.compile(r"nvml(?!Event)\w*(Create|Destroy|Set)\w*")

pytestmark = [pytest.mark.usefixtures("runner"), pytest.mark.timeout(600)]


@pytest.fixture(params=["simulated", "nvml"])
def node(rig: Any, request: pytest.FixtureRequest) -> Any:
    """With real tmpfs mounts: a mount is an effect too. On simulated GPUs, and over the driver's library faked."""
    if request.param == "simulated":
        return replace(rig, tmpfs=True)
    return NvmlRig(rig.root, tmpfs=True, fake=request.getfixturevalue("fake_nvml"))


def _effect(event: str, arguments: tuple[Any, ...]) -> str | None:
    if event == "open":
        path, _, flags = arguments
        # A number is a descriptor that is open already: the pipe to a program that is started.
        return f"open {path}" if flags & _WRITES and path != os.devnull and not isinstance(path, int) else None
    return f"{event} {arguments[0]}" if event in _CHANGES else None


def _tell(function: Callable[..., Any], seen: Callable[[str], None]) -> Callable[..., Any]:
    def told(*arguments: Any, **more: Any) -> Any:
        seen(f"before {function.__name__}")
        result = function(*arguments, **more)
        seen(f"after {function.__name__}")
        return result

    return told


def _watch(seen: Callable[[str], None]) -> None:
    """Calls ``seen`` around every effect of this process from now on."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        effect = _effect(event, arguments)
        if effect is not None:
            seen(effect)

    for module, names in ((tmpfs, ("mount", "unmount")), (pynvml, filter(_DRIVER.fullmatch, dir(pynvml)))):
        for name in names:
            setattr(module, name, _tell(getattr(module, name), seen))
    sys.addaudithook(hook)


def _child(work: Callable[[], None]) -> str:
    """Runs ``work`` in a process of its own; what that wrote to descriptor 3's like, the pipe it is given."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.dup2(write, 3)
            work()
        except BaseException as error:
            os.write(3, f"failed: {error!r}".encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    assert not said.startswith("failed"), said
    return said


def killed_at(nth: int, call: Callable[[], Any]) -> str | None:
    """Runs ``call`` in a process that dies before its nth effect; tells which, None if there are fewer."""

    def work() -> None:
        count, last = 0, ""

        def seen(effect: str) -> None:
            nonlocal count, last
            # How often a daemon is asked whether it is up depends on the machine: asking again is no new effect.
            if effect == last and effect.startswith("subprocess.Popen"):
                return
            count, last = count + 1, effect
            if count == nth:
                os.write(3, effect.encode())
                os._exit(9)

        _watch(seen)
        call()

    return _child(work) or None


@pytest.mark.parametrize(("node", "device"), PLACES, indirect=["node"])
@pytest.mark.case("A19", "A25", "C1", "C21")
def test_prepare_killed_anywhere(node: Any, device: str) -> None:
    """Called again it ends the same; unprepared instead, nothing is left (cases A19, A25, C1, C21)."""
    claim = node.claim(device=device)
    node.prepare(claim)
    wanted = node.end_state("c1")
    node.unprepare("c1")
    effects = []
    while step := killed_at(len(effects) + 1, lambda: node.prepare(claim)):
        effects.append(step)
        node.prepare(claim)
        assert node.end_state("c1") == wanted, f"prepared again after a kill before: {step}"
        node.unprepare("c1")
        assert node.leftovers() == [], f"prepared again after a kill before: {step}"
        assert killed_at(len(effects), lambda: node.prepare(claim)) is not None
        node.unprepare("c1")
        assert node.leftovers() == [], f"unprepared after a kill before: {step}"
    node.unprepare("c1")
    told = "\n".join(effects)
    assert len(effects) >= 20
    for part in ("claims/.c1.json.tmp", "before mount", "after mount", "cdi/.gpulet.dev-c1.json.tmp", "applied.json"):
        assert part in told, told


@pytest.mark.parametrize(("node", "device"), PLACES, indirect=["node"])
@pytest.mark.case("A15", "A19")
def test_unprepare_killed_anywhere(node: Any, device: str) -> None:
    """Called again nothing is left: no daemon, instance, file, mount or compute mode (case A15)."""
    claim = node.claim(device=device)
    effects: list[str] = []
    while True:
        node.prepare(claim)
        step = killed_at(len(effects) + 1, lambda: node.unprepare("c1"))
        if step is None:
            break
        effects.append(step)
        node.unprepare("c1")
        assert node.leftovers() == [], f"after a kill before: {step}"
    assert node.leftovers() == []
    told = "\n".join(effects)
    assert len(effects) >= 10
    driver = " nvml" if isinstance(node, NvmlRig) else "simulated"
    for part in ("os.remove", "after unmount", "os.rmdir", driver):
        assert part in told, told


@pytest.mark.case("A2")
def test_no_container_can_start_before_the_settings_were_read_back(node: Any) -> None:
    """Case A2: whenever the CDI file is there, the living daemon's settings have been read back, however slowly."""
    uuid = node.source.gpus()[1].uuid
    applied, spec = node.daemons.folders(uuid).applied, node.cdi / "gpulet.dev-c1.json"

    def work() -> None:
        moments: list[tuple[bool, bool]] = []

        def seen(effect: str) -> None:
            # Path.exists() asks without an audit event.
            moments.append((spec.exists(), applied.exists()))

        _watch(seen)
        node.prepare(node.claim(device="gpu-1"))
        os.write(3, json.dumps(moments).encode())

    moments = json.loads(_child(work))
    assert [False, False] in moments and [False, True] in moments
    assert [True, False] not in moments
    node.unprepare("c1")


@pytest.mark.case("F5")
def test_what_killed_writers_left_is_swept(node: Any) -> None:
    """Also where nobody asks for the claim again: half-written files go once they are old."""
    for effect in range(1, 6):
        killed_at(effect, lambda: node.prepare(node.claim("gone")))
    halves = [*node.state.glob("claims/.*.tmp"), *node.cdi.glob(".*.tmp")]
    assert halves
    assert node.shares().sweep(Deadline(20)) == [], "a living writer's file is young"
    for half in halves:
        os.utime(half, (0, 0))
    assert node.shares().sweep(Deadline(20)) == sorted(half.name for half in halves)
    node.unprepare("gone")
    assert node.leftovers() == []


def test_the_watch_misses_no_effect(tmp_path: Path) -> None:
    """The instrument itself: each kind of change is told, reading is not."""

    def work() -> None:
        told: list[str] = []
        _watch(told.append)
        file = tmp_path / "file"
        file.write_text("x")
        file.read_text()
        file.replace(tmp_path / "other")
        (tmp_path / "other").unlink()
        os.write(3, "\n".join(told).encode())

    kinds = [line.split()[0] for line in _child(work).splitlines()]
    assert kinds == ["open", "os.rename", "os.remove"]
