"""The node's long series, without a cluster: random kills under churn, then nothing is left. ``make soak``.

GPULET_SOAK_FOLDER names a folder that outlives a run: a series that was interrupted goes on from there, over whatever
the node held at that moment. GPULET_SOAK_SEED repeats a series, GPULET_SOAK_KILLS is its length.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpulet.agent.claims import ClaimRefusedError
from gpulet.agent.waiting import Deadline
from tests.agent.conftest import Rig
from tests.agent.test_kills import killed_at

KILLS = int(os.environ.get("GPULET_SOAK_KILLS", "300"))
_EFFECTS = 45
"""A prepare has about so many; a call that has fewer comes through."""
_CHECK_EVERY = 20
CLAIMS: dict[str, dict[str, Any]] = {
    "a1": {"device": "gpu-1", "percent": 30},
    "a2": {"device": "gpu-1", "percent": 30},
    "a3": {"device": "gpu-1", "percent": 50},
    "upper1": {"device": "gpu-0-mig-3g-40gb-4", "percent": 50},
    "upper2": {"device": "gpu-0-mig-3g-40gb-4", "percent": 50},
    "lower": {"device": "gpu-0-mig-4g-40gb-0"},
    "small": {"device": "gpu-0-mig-1g-10gb-0"},
    "whole": {"device": "gpu-0"},
}
"""Some exclude each other: a refusal is an answer too."""

pytestmark = [pytest.mark.soak, pytest.mark.timeout(7200)]


@dataclass
class Series:
    """Where a series stands: its random numbers follow from seed and number alone."""

    file: Path
    seed: int
    done: int
    wanted: list[str]

    @classmethod
    def load(cls, file: Path) -> "Series":
        if file.exists():
            return cls(file, **json.loads(file.read_text()))
        seed = int(os.environ.get("GPULET_SOAK_SEED", str(random.SystemRandom().randrange(10**6))))
        return cls(file, seed, 0, [])

    def save(self) -> None:
        self.file.write_text(json.dumps({"seed": self.seed, "done": self.done, "wanted": self.wanted}))

    def chance(self) -> random.Random:
        return random.Random(f"{self.seed}/{self.done}")


@pytest.fixture
def folder() -> Iterator[Path]:
    kept = os.environ.get("GPULET_SOAK_FOLDER")
    if kept:
        Path(kept).mkdir(parents=True, exist_ok=True)
        yield Path(kept)
        return
    with tempfile.TemporaryDirectory(prefix="soak") as name:
        yield Path(name)


class Node:
    """The rig with a runner that may be killed too."""

    def __init__(self, folder: Path) -> None:
        self.rig = Rig(folder, tmpfs=True)
        self.runner: subprocess.Popen[bytes] = self.rig.start_runner()

    def stop(self) -> None:
        self.runner.terminate()
        self.runner.wait(timeout=60)

    def kill_runner(self) -> None:
        self.runner.send_signal(signal.SIGKILL)
        self.runner.wait()
        self.runner = self.rig.start_runner()

    def kill_daemon(self, chance: random.Random) -> None:
        running = [p for uuid in sorted(self.rig.daemons.wanted()) if (p := self.rig.daemons.running(uuid))]
        if running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(chance.choice(running).pid, signal.SIGKILL)

    def call(self, uid: str, wanted: bool) -> bool:
        """Prepares or unprepares to the end; whether the share is there then."""
        if not wanted:
            self.rig.shares().unprepare(uid, Deadline(40))
            return False
        with contextlib.suppress(ClaimRefusedError):
            self.rig.prepare(self.rig.claim(uid, **CLAIMS[uid]))
            return True
        self.rig.shares().unprepare(uid, Deadline(40))
        return False


def _one_kill(node: Node, series: Series) -> None:
    """One kill at a random effect of a random call; now and then a daemon or the runner dies as well."""
    chance = series.chance()
    uid = chance.choice(sorted(CLAIMS))
    wanted = uid not in series.wanted
    killed_at(chance.randint(1, _EFFECTS), lambda: node.call(uid, wanted))
    if chance.random() < 0.15:
        node.kill_daemon(chance)
    if chance.random() < 0.05:
        node.kill_runner()
    # The kubelet makes the call again, or the pod was deleted meanwhile.
    there = node.call(uid, wanted and chance.random() < 0.8)
    series.wanted = sorted({*series.wanted, uid} if there else {*series.wanted} - {uid})
    series.done += 1
    series.save()


def _check(node: Node, series: Series) -> None:
    """The node holds what is wanted and nothing else, and each daemon's settings are read back."""
    rig = node.rig
    records = rig.shares().store.all()
    told = f"seed {series.seed}, after {series.done} kills"
    assert sorted(r.uid for r in records) == series.wanted, told
    assert all(r.step == "ready" for r in records), told
    daemons = {str(r.mps_uuid): r.gpu for r in records}
    Deadline(60).until(lambda: all(map(rig.daemons.running, daemons)), f"daemons to be up again ({told})")
    Deadline(60).until(lambda: _settled(rig, daemons), f"settings to be applied again ({told})")
    assert rig.shares().sweep(Deadline(60)) == [], told
    assert rig.daemons.wanted() == set(daemons), told
    assert sorted(p.name for p in rig.cdi.glob("*")) == sorted(f"gpulet.dev-{uid}.json" for uid in series.wanted), told
    instances = {i.uuid for gpu in rig.source.gpus() for i in rig.source.instances(gpu.uuid)}
    assert instances == {uuid for uuid in daemons if uuid.startswith("MIG")}, told
    assert {g.uuid for g in rig.source.gpus() if rig.source.exclusive(g.uuid)} == daemons.keys() - instances, told
    assert Path("/proc/self/mounts").read_text().count(f" {rig.mps}/") == len(daemons), told


def _settled(rig: Rig, daemons: dict[str, str]) -> bool:
    rig.shares().settle(daemons, Deadline(5))
    return all(map(rig.daemons.settled, daemons))


@pytest.mark.case("A15", "A19", "A25", "C21", "F5")
def test_random_kills_under_churn_leave_nothing(folder: Path) -> None:
    """Cases A15, A19, A25, C21, F5: no orphan daemon, instance, claim file, CDI file, mount or compute mode."""
    series = Series.load(folder / "series.json")
    print(f"seed {series.seed}: {series.done} of {KILLS} kills done")
    node = Node(folder)
    try:
        while series.done < KILLS:
            _one_kill(node, series)
            if series.done % _CHECK_EVERY == 0:
                _check(node, series)
                print(f"{series.done} of {KILLS} kills, holding {', '.join(series.wanted) or 'nothing'}", flush=True)
        for uid in CLAIMS:
            node.rig.shares().unprepare(uid, Deadline(40))
        series.wanted = []
        series.save()
        assert node.rig.leftovers() == []
    finally:
        node.stop()
