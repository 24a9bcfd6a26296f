"""The demo on a cluster of its own, with one kill of each part while it runs: it ends as the plan has it, with nothing
doubled, lost or left behind."""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from e2e.checks import audit, endstate, kills, leftovers
from e2e.cluster import local
from e2e.cluster.commands import say
from e2e.cluster.layout import Layout, find
from e2e.cluster.paths import cache_root, locked
from e2e.demo import down, install, load
from e2e.demo.install import eventually
from e2e.kubectl import Kubectl

NAME = "demo-test"
SEED = 20260101
# The tests of this file build on each other, in their order, on one cluster.
pytestmark = pytest.mark.timeout(900)


@dataclass(frozen=True)
class Played:
    """A demo that was disturbed and has ended."""

    cluster: Layout
    kubectl: Kubectl
    summary: dict[str, Any]
    kills: list[str]
    load_stopped_s: float
    """By time.monotonic(): when the callers of the demo were ended."""


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    """The demo's own command line, with the kills beside it; the cluster goes when the module ends.

    One run at a time on a machine: a second one would take the cluster from under the first.
    """
    log = tmp_path_factory.mktemp("demo") / "demo.log"
    with locked(cache_root() / "locks" / f"test-{NAME}"):
        yield from _play(log)


def _play(log: Path) -> Iterator[Played]:
    demo: subprocess.Popen[str] | None = None
    try:
        with log.open("w") as lines:
            demo = _start(lines)
            disturbed = _disturb(demo)
            output, _ = demo.communicate(timeout=700)
        assert demo.returncode == 0, log.read_text()[-6000:]
        load.stop(_kubectl())
        yield Played(_cluster(), _kubectl(), json.loads(output), disturbed, time.monotonic())
    finally:
        if demo is not None and demo.poll() is None:
            demo.terminate()
            demo.wait(30)
        local.down(NAME, say)


def _start(lines: Any) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "e2e.demo", "run", "--name", NAME, "-o", "json"]
    folder = Path(__file__).resolve().parent.parent
    environment = {key: value for key, value in os.environ.items() if key not in ("CONTEXT", "KUBECONFIG")}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=lines, text=True, cwd=folder, env=environment)


def _disturb(demo: "subprocess.Popen[str]") -> list[str]:
    """One kill each of controller, agent, runner and kubelet, in a seeded order, on seeded nodes, 15 to 35 s apart."""

    def models_are_there() -> bool:
        assert demo.poll() is None, "the demo ended before it applied its models"
        return find(NAME) is not None and bool(_kubectl().list("gpulets.gpulet.dev", "-A"))

    eventually("the demo's first shares", models_are_there, timeout_s=400)
    chance = random.Random(SEED)
    victims = list(kills.VICTIMS)
    chance.shuffle(victims)
    done = []
    for victim in victims:
        time.sleep(chance.uniform(15, 35))
        node = chance.choice(["node1", "node2"])
        done.append(kills.kill(_cluster(), _kubectl(), victim, node))
    return done


def _cluster() -> Layout:
    cluster = find(NAME)
    assert cluster is not None
    return cluster


def _kubectl() -> Kubectl:
    return Kubectl(_cluster().kubeconfig)


def test_the_demo_shows_what_it_promises(played: Played) -> None:
    found = played.summary
    assert len(played.kills) == 4
    assert len(found["models"]) == 3
    assert found["lowerBound"] <= found["gpusUsed"] < found["gpusWithOneGpuAModel"]
    # The last half minute is measured after every disturbance: nothing may be lost in it.
    assert all(model["sent"] > 0 and model["errors"] == 0 for model in found["models"]), found["models"]
    (tuned,) = found["tuning"]
    assert tuned["phase"] == "Succeeded"
    assert tuned["trials"] > 0
    assert tuned["afterMilliseconds"] < tuned["untunedMilliseconds"]
    assert tuned["onnxRuntimeMilliseconds"] > 0
    assert tuned["servedNow"] == ("tvm" if tuned["adopted"] else "onnx")


def test_shares_are_those_of_the_plan_and_nothing_is_doubled(played: Played) -> None:
    def at_rest() -> bool:
        return not endstate.mismatches(played.kubectl) and not endstate.unhealthy(endstate.conditions(played.kubectl))

    eventually("the cluster to come to rest", at_rest, timeout_s=120, period_s=3)
    assert endstate.gpulets(played.kubectl) == endstate.planned(endstate.plan(played.kubectl))
    assert endstate.mismatches(played.kubectl) == []
    assert endstate.unhealthy(endstate.conditions(played.kubectl)) == []


def test_nodes_hold_one_file_of_each_kind_a_share(played: Played) -> None:
    expected = endstate.expected_node_files(played.kubectl, played.cluster)
    eventually("nodes to hold what runs", lambda: endstate.node_files(played.cluster) == expected, timeout_s=60)


def test_applying_the_same_files_again_changes_nothing(played: Played) -> None:
    before = endstate.versions(played.kubectl)
    install.examples(played.kubectl, say)
    time.sleep(8)
    assert endstate.versions(played.kubectl) == before


def test_without_traffic_nothing_is_written_but_leases(played: Played) -> None:
    # Figures of the last minute fade, and are written as they do.
    time.sleep(max(0.0, played.load_stopped_s + 100 - time.monotonic()))
    since = datetime.now(UTC)
    time.sleep(60)
    for user in (audit.CONTROLLER, audit.AGENT):
        assert audit.writes(played.cluster.audit_log, user, since=since) == []


@pytest.mark.parametrize("user", [audit.CONTROLLER, audit.AGENT])
def test_permissions_are_those_that_are_used(played: Played, user: str) -> None:
    assert audit.denied(played.cluster.audit_log, user) == []
    unused = audit.granted(played.kubectl, user) - audit.used(played.cluster.audit_log, user) - audit.RARE
    assert sorted(unused) == []


def test_deleting_everything_leaves_nothing_behind(played: Played) -> None:
    down.objects(played.kubectl, say)
    assert leftovers.in_cluster(played.kubectl) == []
    eventually("nodes to be clean", lambda: not leftovers.on_nodes(played.cluster), timeout_s=60)
