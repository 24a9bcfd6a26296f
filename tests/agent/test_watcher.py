"""The slow loop over shares: a claim that cannot be told of, one that vanished, and what is exported."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gpulet.agent.config import AgentConfig
from gpulet.agent.exporter import serve
from gpulet.agent.main import _look_regularly
from gpulet.agent.vanished import Vanished
from gpulet.agent.waiting import Deadline, lock
from gpulet.agent.watcher import Watcher
from gpulet.kube.errors import UnavailableError
from gpulet.metrics.node import NodeMetrics, ShareSeen
from tests.agent.kubelet import Api, client_of

pytestmark = pytest.mark.usefixtures("runner")


async def test_one_claim_that_cannot_be_written_does_not_silence_the_others(
    rig: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Said once; the other's conditions are written, and its metrics too."""
    for uid in ("c1", "c2"):
        rig.prepare(rig.claim(uid, "gpu-1", percent=20))
    api = Api({f"claim-{uid}": rig.claim(uid, "gpu-1", percent=20) for uid in ("c1", "c2")}, forbidden={"claim-c1"})
    metrics = NodeMetrics()
    async with client_of(api) as client:
        watcher = Watcher(client, rig.shares(), metrics, proc=Path("/proc"), period_s=1)
        for _ in range(3):
            await watcher.look()
    assert {name: len(written) for name, written in api.written.items()} == {"claim-c2": 1}
    (device,) = api.written["claim-c2"][0]["status"]["devices"]
    assert {c["type"]: c["status"] for c in device["conditions"]} == {"Ready": "True", "Enforced": "Unknown"}
    assert len([r for r in caplog.records if "conditions of claim vision/claim-c1" in r.getMessage()]) == 1
    labels = {"namespace": "vision", "claim": "claim-c2", "gpu": rig.source.gpus()[1].uuid, "device": "gpu-1"}
    assert metrics.registry.get_sample_value("gpulet_node_share_compute_percent", labels) == 20
    for uid in ("c1", "c2"):
        rig.unprepare(uid)


@pytest.mark.case("A23")
async def test_a_gpu_that_is_being_worked_on_does_not_stop_the_loop(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another pod's client may have to be terminated meanwhile (failure case A23)."""
    monkeypatch.setattr("gpulet.agent.watcher._LOCK_S", 0.2)
    record = rig.prepare(rig.claim(device="gpu-1"))
    rig.daemons.folders(record.mps_uuid).applied.unlink()
    async with client_of(Api({"claim-c1": rig.claim(device="gpu-1")})) as client:
        watcher = Watcher(client, rig.shares(), NodeMetrics(), proc=Path("/proc"), period_s=1)
        with lock(rig.state / f"lock-{record.gpu}", Deadline(1)):
            await asyncio.wait_for(watcher.look(), 5)
        assert not rig.daemons.settled(record.mps_uuid)
        await watcher.look()
        assert rig.daemons.settled(record.mps_uuid)
    rig.unprepare("c1")


@pytest.mark.case("F3", "F5")
async def test_a_claim_that_vanished_without_a_word_is_undone(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case F3: only once it stayed away, no pod names it, and the API server itself says so."""
    monkeypatch.setattr("gpulet.agent.vanished._ASK_S", 0.0)
    monkeypatch.setattr("gpulet.agent.vanished._PATIENCE_S", 0.3)
    shares = rig.shares()
    for uid in ("gone", "kept", "used"):
        rig.prepare(rig.claim(uid, "gpu-1", percent=20))
    records = shares.store.all()
    api = Api({"claim-kept": rig.claim("kept", "gpu-1", percent=20)}, status=503)
    async with client_of(api) as client:
        vanished = Vanished(client, shares)
        with pytest.raises(UnavailableError):
            await vanished.look(records, [("vision", "claim-used")])
        api.status = 200
        await vanished.look(records, [("vision", "claim-used")])
        assert len(shares.store.all()) == 3, "once is not enough"
        await asyncio.sleep(0.4)
        await vanished.look(records, [("vision", "claim-used")])
    assert {r.uid for r in shares.store.all()} == {"kept", "used"}
    for uid in ("kept", "used"):
        rig.unprepare(uid)
    assert rig.leftovers() == []


@pytest.mark.case("D1")
async def test_a_claim_of_the_same_name_and_another_uid_is_another(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case D1."""
    monkeypatch.setattr("gpulet.agent.vanished._ASK_S", 0.0)
    monkeypatch.setattr("gpulet.agent.vanished._PATIENCE_S", 0.0)
    rig.prepare(rig.claim("c1", "gpu-1"))
    other = rig.claim("c1", "gpu-1")
    other["metadata"]["uid"] = "re-created"
    async with client_of(Api({"claim-c1": other})) as client:
        await Vanished(client, rig.shares()).look(rig.shares().store.all(), [])
    assert rig.leftovers() == []


@pytest.mark.case("J5")
async def test_metrics_are_of_what_is_there_now(rig: Any) -> None:
    """Case J5: a share that went takes its series along; a taken port is said and lived with."""
    metrics = NodeMetrics()
    runner = await serve(metrics, rig.shares(), 18471)
    assert runner is not None
    try:
        assert await serve(metrics, rig.shares(), 18471) is None
        metrics.shares([ShareSeen("v", "c", "GPU-1", "gpu-0", 40, 1024, "False", "Tampered")])
        text = await _text()
        assert (
            'gpulet_node_share_enforced{claim="c",device="gpu-0",gpu="GPU-1",namespace="v",reason="Tampered"} 0.0'
            in text
        )
        assert text.count("gpulet_node_gpu_healthy{") == 2
        metrics.shares([])
        assert "gpulet_node_share_enforced{" not in await _text()
    finally:
        await runner.cleanup()


@pytest.mark.case("F9")
async def test_without_the_api_server_the_node_is_swept_all_the_same(
    rig: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Case F9: a look that fails is said once and stops no other."""
    rig.cdi.mkdir()
    orphan = rig.cdi / "gpulet.dev-nobodys.json"
    orphan.write_text("{}")
    asked = 0

    async def ask() -> None:
        nonlocal asked
        asked += 1
        raise UnavailableError("no connection")

    looking = asyncio.create_task(
        _look_regularly(AgentConfig(verify_period_seconds=0.1), rig.shares(), {"asking the API server": ask})
    )
    async with asyncio.timeout(10):
        while orphan.exists() or asked < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    looking.cancel()
    assert [r.getMessage() for r in caplog.records if "asking" in r.getMessage()] == [
        "asking the API server: no connection"
    ]


@pytest.mark.case("J3")
async def test_metrics_follow_a_gpu_that_was_lost(rig: Any) -> None:
    """Case J3: the exporter answers through it, without a restart."""
    (_, second) = rig.source.gpus()
    rig.state.mkdir(exist_ok=True)
    runner = await serve(NodeMetrics(), rig.shares(), 18471)
    assert runner is not None
    try:
        for health, value in (("healthy", "1.0"), ("lost", "0.0"), ("healthy", "1.0")):
            (rig.state / "faults.json").write_text(json.dumps({"health": {second.uuid: health}}))
            assert f'gpulet_node_gpu_healthy{{gpu="{second.uuid}",health="{health}"}} {value}' in await _text()
    finally:
        await runner.cleanup()


async def _text() -> str:
    async with aiohttp.ClientSession() as session, session.get("http://127.0.0.1:18471/metrics") as answer:
        assert answer.status == 200
        return await answer.text()
