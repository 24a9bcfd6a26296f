"""What goes wrong around a prepare: disks, the API server, claims. Each is said once and over when its cause is."""

import asyncio
import json
import logging
import os
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpulet.agent.claims import ClaimRefusedError
from gpulet.agent.config import AgentConfig, ConfigurationError
from gpulet.agent.main import self_test
from gpulet.agent.waiting import Deadline, DeadlineError
from tests.agent.kubelet import Api, Kubelet, client_of, kubelet_of

pytestmark = pytest.mark.usefixtures("runner")


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    """A small disk of its own at ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "disk", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def remount(folder: Path, mode: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{mode}", folder], check=True)


@asynccontextmanager
async def served(rig: Any, api: Api) -> AsyncIterator[Kubelet]:
    async with client_of(api) as client, kubelet_of(rig.shares(), client, rig.root / "kubelet") as kubelet:
        yield kubelet


def fill(folder: Path) -> Path:
    """Until not one byte more fits."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError as error:
            assert error.strerror == "No space left on device"
    return ballast


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING and r.name.startswith("gpulet")]


@pytest.mark.parametrize("full", ["state", "cdi"])
async def test_full_disk(rig: Any, caplog: pytest.LogCaptureFixture, full: str) -> None:
    """The pod is told which file; nothing half-written stays; a share can be undone; room ends it."""
    claim, other = rig.claim("c1", "gpu-1", percent=20), rig.claim("c2", "gpu-1", percent=20)
    api = Api({c["metadata"]["name"]: c for c in (claim, other)})
    with mounted(rig.root / full, "size=64k"):
        async with served(rig, api) as kubelet:
            assert (await kubelet.prepare(claim))["c1"].error == ""
            ballast = fill(rig.root / full)
            for _ in range(3):
                said = (await kubelet.prepare(other))["c2"].error
                assert said.startswith(f"No space left on device: {rig.root / full}") and "free some" in said
            assert not list((rig.root / full).rglob(".*.tmp"))
            assert len(warnings(caplog)) == 1, "said once"
            assert (await kubelet.unprepare(claim))["c1"].error == ""
            assert (await kubelet.unprepare(other))["c2"].error == ""
            ballast.unlink()
            assert (await kubelet.prepare(other))["c2"].error == ""
            assert (await kubelet.unprepare(other))["c2"].error == ""
        assert rig.leftovers()[:-1] == [], "all but the disk itself"


async def test_read_only_cdi_folder(rig: Any, caplog: pytest.LogCaptureFixture) -> None:
    claim = rig.claim(device="gpu-1")
    with mounted(rig.cdi, "size=64k"):
        async with served(rig, Api({"claim-c1": claim})) as kubelet:
            remount(rig.cdi, "ro")
            for _ in range(3):
                said = (await kubelet.prepare(claim))["c1"].error
                assert said.startswith(f"Read-only file system: {rig.cdi}/gpulet.dev-c1.json; mount it for writing")
            assert len(warnings(caplog)) == 1
            assert (await kubelet.unprepare(claim))["c1"].error == "", "nothing of it was ever written there"
            remount(rig.cdi, "rw")
            assert (await kubelet.prepare(claim))["c1"].error == ""
            assert (await kubelet.unprepare(claim))["c1"].error == ""
    assert rig.leftovers() == []


@pytest.mark.case("A18")
def test_the_self_test_tells_a_full_disk_from_one_that_is_not_ours(rig: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A full disk does not stop an agent that has shares to undo; a read-only one names its field (case A18)."""
    config = AgentConfig(
        kubelet_directory=rig.root / "k",
        cdi_directory=rig.cdi,
        mps_directory=rig.mps,
        state_directory=rig.state,
        shared_memory_tmpfs=False,
    )
    # One inode is the root's own.
    with mounted(rig.state, "nr_inodes=1"):
        self_test(config)
    assert [m for m in warnings(caplog) if m.startswith("stateDirectory") and "is full" in m]
    with mounted(rig.cdi, "ro"), pytest.raises(ConfigurationError, match=r"cdiDirectory: .* cannot be written to"):
        self_test(config)


@pytest.mark.case("F9")
async def test_api_server_away_or_slow(rig: Any, caplog: pytest.LogCaptureFixture, monkeypatch: Any) -> None:
    """Case F9: a share that is true stays true when asked for again; a new one fails with the reason, said once."""
    monkeypatch.setattr("gpulet.agent.plugin._API_PATIENCE_S", 0.3)
    monkeypatch.setattr("gpulet.agent.plugin._API_CALL_S", 0.3)
    held, new = rig.claim("c1", "gpu-1", percent=20), rig.claim("c2", "gpu-1", percent=20)
    api = Api({"claim-c1": held, "claim-c2": new})
    async with served(rig, api) as kubelet:
        first = (await kubelet.prepare(held))["c1"]
        for fault, words in (({"status": 503}, "503"), ({"delay_s": 5.0}, "gave no answer within")):
            api.status, api.delay_s = 200, 0.0
            vars(api).update(fault)
            assert (await kubelet.prepare(held))["c1"] == first
            caplog.clear()
            for _ in range(2):
                assert words in (await kubelet.prepare(new))["c2"].error
            assert len(warnings(caplog)) == 1
        api.status, api.delay_s = 200, 0.0
        assert (await kubelet.prepare(new))["c2"].error == ""
        api.status = 503
        for claim in (held, new):
            assert (await kubelet.unprepare(claim))[claim["metadata"]["uid"]].error == "", "never asks the API server"
    assert rig.leftovers() == []


async def test_api_server_away_for_a_moment_costs_no_retry_of_the_kubelet(rig: Any) -> None:
    api = Api({"claim-c1": rig.claim(device="gpu-1")}, status=503)
    async with served(rig, api) as kubelet:
        begun = time.monotonic()

        async def recover() -> None:
            while api.asked < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            api.status = 200

        mending = asyncio.create_task(recover())
        assert (await kubelet.prepare(rig.claim(device="gpu-1")))["c1"].error == ""
        await mending
        assert time.monotonic() - begun < 10
        await kubelet.unprepare(rig.claim(device="gpu-1"))


def _foreign(claim: dict[str, Any]) -> None:
    claim["status"]["allocation"]["devices"]["results"][0]["driver"] = "gpu.nvidia.com"


def _foreign_beside(claim: dict[str, Any]) -> None:
    other = {"driver": "gpu.nvidia.com", "request": "r", "pool": "p", "device": "gpu-0"}
    claim["status"]["allocation"]["devices"]["results"].insert(0, other)


def _two(claim: dict[str, Any]) -> None:
    results = claim["status"]["allocation"]["devices"]["results"]
    results.append(results[0] | {"request": "second"})


def _break(*path: Any, value: Any) -> Any:
    def change(claim: dict[str, Any]) -> None:
        inside: Any = claim
        for key in path[:-1]:
            inside = inside[key]
        inside[path[-1]] = value

    return change


_RESULT = ("status", "allocation", "devices", "results", 0)
_CONFIG = [{"opaque": {"driver": "gpulet.dev", "parameters": {"kind": "ShareConfig", "isolation": "Sometimes"}}}]


@pytest.mark.case("A21", "D1", "D2", "G2")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_foreign, "holds no device of gpulet.dev"),
        (_two, "asks for 2 shares; ask for one share in a claim"),
        (_break("status", value={}), "holds no device of gpulet.dev"),
        (_break("status", value=None), "holds no device of gpulet.dev"),
        (_break("status", "allocation", "devices", "results", value="odd"), "malformed"),
        (_break(*_RESULT, "device", value="gpu-99"), "device gpu-99 of pool .* is not on this node now"),
        (_break(*_RESULT, "device", value=None), "is not on this node now"),
        (_break(*_RESULT, "consumedCapacity", value={}), "consumedCapacity: 'computePercent'"),
        (_break(*_RESULT, "consumedCapacity", "memory", value="1.5G"), "1.5G.* not a whole number"),
        (_break(*_RESULT, "consumedCapacity", "computePercent", value="0"), "computePercent is 0"),
        (_break(*_RESULT, "consumedCapacity", "clients", value="-1"), "clients is -1"),
        (_break("status", "allocation", "devices", "config", value=_CONFIG), "opaque parameters: .*isolation"),
        (_break("metadata", "uid", value="another"), "it was re-created"),
        (_break("metadata", value={}), "malformed"),
    ],
)
async def test_claims_that_cannot_be_prepared(rig: Any, change: Any, said: str) -> None:
    """Cases A21, D1, D2: refused with the reason, beside a good claim of the same call that is prepared."""
    bad, good = rig.claim("bad", "gpu-1", percent=20), rig.claim("good", "gpu-1", percent=20)
    asked = json.loads(json.dumps(bad))
    change(bad)
    async with served(rig, Api({"claim-bad": bad, "claim-good": good})) as kubelet:
        answers = await kubelet.prepare(asked, good)
        assert answers["good"].error == ""
        with pytest.raises(AssertionError, match=said):
            raise AssertionError(answers["bad"].error)
        assert rig.shares().store.read("bad") is None, "no effect"
        answers = await kubelet.unprepare(asked, good)
        assert {a.error for a in answers.values()} == {""}
    assert rig.leftovers() == []


async def test_results_of_other_drivers_are_theirs(rig: Any) -> None:
    claim = rig.claim(device="gpu-1")
    _foreign_beside(claim)
    async with served(rig, Api({"claim-c1": claim})) as kubelet:
        (device,) = (await kubelet.prepare(claim))["c1"].devices
        assert (device.pool_name, list(device.request_names)) == (
            claim["status"]["allocation"]["devices"]["results"][1]["pool"],
            ["gpulet"],
        )
        await kubelet.unprepare(claim)


async def test_a_claim_that_vanished_before_its_prepare(rig: Any) -> None:
    api = Api()
    async with served(rig, api) as kubelet:
        assert "does not exist" in (await kubelet.prepare(rig.claim()))["c1"].error
        assert (await kubelet.unprepare(rig.claim()))["c1"].error == ""
    assert rig.leftovers() == []


def test_a_claim_allocated_anew_under_its_old_uid_is_moved(rig: Any) -> None:
    """Case D1: what the claim says now is true, not what a file remembers."""
    rig.prepare(rig.claim(device="gpu-0"))
    record = rig.prepare(rig.claim(device="gpu-1", percent=70))
    assert (record.device, record.compute_percent) == ("gpu-1", 70)
    assert rig.daemons.wanted() == {rig.source.gpus()[1].uuid}
    assert not rig.source.exclusive(rig.source.gpus()[0].uuid)
    rig.unprepare("c1")
    assert rig.leftovers() == []


@pytest.mark.case("A25", "F5")
def test_a_claim_file_that_cannot_be_read_harms_nobody(rig: Any) -> None:
    """It is set aside and said; neighbours go on; its claim can be prepared and unprepared as if it were new."""
    rig.prepare(rig.claim("c1", "gpu-1", percent=20))
    path = rig.state / "claims" / "c1.json"
    path.write_text(path.read_text()[:40])
    assert rig.prepare(rig.claim("c2", "gpu-1", percent=20)).step == "ready"
    assert path.with_name("c1.json.broken").exists()
    assert rig.shares().sweep(Deadline(5)) == [], "its container may still be started again"
    assert rig.prepare(rig.claim("c1", "gpu-1", percent=20)).step == "ready"
    for uid in ("c1", "c2"):
        rig.unprepare(uid)
    assert rig.leftovers() == []


def test_a_claim_file_of_a_newer_agent_is_understood(rig: Any) -> None:
    """A roll-back of the agent: fields it does not know are not an error."""
    record = rig.prepare(rig.claim(device="gpu-1"))
    path = rig.state / "claims" / "c1.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"fromTheFuture": 1}))
    assert rig.shares().store.read("c1") == record
    rig.unprepare("c1")


def test_a_daemon_that_does_not_come_up_delays_no_other_gpu(rig: Any) -> None:
    """One lock for each GPU: the first waits for its daemon while the second is made."""
    uuid = rig.source.gpus()[0].uuid
    folders = rig.daemons.folders(uuid)
    folders.pipe.mkdir(parents=True)
    folders.log.mkdir()
    # The runner cannot start a daemon whose log it cannot write.
    (folders.log / "daemon.log").mkdir()
    pid = os.fork()
    if pid == 0:
        try:
            rig.shares().prepare(rig.claim("c1", "gpu-0"), "c1", Deadline(4))
        except DeadlineError:
            os._exit(7)
        os._exit(0)
    Deadline(3).until(lambda: rig.shares().store.read("c1") is not None, "the first to be at it")
    begun = time.monotonic()
    assert rig.prepare(rig.claim("c2", "gpu-1")).step == "ready"
    assert time.monotonic() - begun < 3
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    for uid in ("c1", "c2"):
        rig.unprepare(uid)
    assert rig.leftovers() == []


def test_refusals_name_claim_and_reason(rig: Any) -> None:
    rig.prepare(rig.claim("c1", "gpu-1", percent=60))
    with pytest.raises(ClaimRefusedError, match=r"ResourceClaim vision/claim-c2: computePercent on gpu-1 would add up"):
        rig.prepare(rig.claim("c2", "gpu-1", percent=60))
    rig.unprepare("c1")
