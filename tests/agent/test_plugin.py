"""The plugin as a kubelet sees it: registration, health, many pods at once, two agents side by side."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import grpc
import pytest

from gpulet.agent.plugin import Plugin
from gpulet.agent.proto import registration_pb2
from gpulet.agent.watcher import Watcher
from gpulet.metrics.node import NodeMetrics
from tests.agent.kubelet import Api, Kubelet, client_of, kubelet_of

A100 = "gpu-1"


async def test_what_registration_says(rig: Any) -> None:
    """Both health services, beside the plugin's: a kubelet takes the newest that it knows."""
    async with client_of(Api()) as client, kubelet_of(rig.shares(), client, rig.root / "k"):
        socket = rig.root / "k/plugins_registry/gpulet.dev-agent-reg.sock"
        async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
            ask = channel.unary_unary(
                "/pluginregistration.Registration/GetInfo",
                request_serializer=registration_pb2.InfoRequest.SerializeToString,
                response_deserializer=registration_pb2.PluginInfo.FromString,
            )
            begun = time.monotonic()
            info = await ask(registration_pb2.InfoRequest())
            assert time.monotonic() - begun < 1, "the kubelet waits one second"
    assert (info.type, info.name) == ("DRAPlugin", "gpulet.dev")
    assert list(info.supported_versions) == ["v1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"]


@pytest.mark.case("N1", "N2")
@pytest.mark.parametrize("service", ["v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"])
async def test_health_is_told_at_once_when_it_changes_and_of_that_gpu_alone(rig: Any, service: str) -> None:
    """Cases N1, N2: unhealthy, and healthy again."""
    first, second = rig.source.gpus()
    rig.state.mkdir(exist_ok=True)
    faults = rig.state / "faults.json"
    async with client_of(Api()) as client, kubelet_of(rig.shares(), client, rig.root / "k") as kubelet:
        told = kubelet.health(service)
        everything = await anext(told)
        assert len(everything) == 19 + 1 and set(everything.values()) == {(1, "")}
        faults.write_text(json.dumps({"health": {second.uuid: "lost"}}))
        lost = await asyncio.wait_for(anext(told), 5)
        assert lost[A100] == (2, f"GPU {second.uuid} is lost: simulated fault")
        assert {h for name, h in lost.items() if name != A100} == {(1, "")}
        faults.write_text(json.dumps({"health": {second.uuid: "degraded"}}))
        assert (await asyncio.wait_for(anext(told), 5))[A100] == (1, f"GPU {second.uuid} is degraded: simulated fault")
        faults.unlink()
        assert (await asyncio.wait_for(anext(told), 5))[A100] == (1, "")
        assert first.health == "healthy"


async def test_health_is_told_again_before_it_is_too_old(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpulet.agent.health._AGAIN_S", 0.2)
    async with client_of(Api()) as client, kubelet_of(rig.shares(), client, rig.root / "k") as kubelet:
        told = kubelet.health()
        assert await anext(told) == await asyncio.wait_for(anext(told), 5)


async def test_a_stopping_agent_does_not_wait_for_the_health_stream(rig: Any) -> None:
    """It has a minute before it is killed, and the stream has no end of its own."""
    async with client_of(Api()) as client:
        async with kubelet_of(rig.shares(), client, rig.root / "k") as kubelet:
            told = kubelet.health()
            await anext(told)
            begun = time.monotonic()
        assert time.monotonic() - begun < 5


@pytest.mark.case("M1")
async def test_a_hundred_pods_at_once(rig: Any, runner: Any) -> None:
    """Case M1, a node's part of it: 50 shares of 2 % each on both GPUs, prepared and unprepared all at once."""
    claims = [rig.claim(f"c{i}", f"gpu-{i % 2}", percent=2, memory="512Mi", isolation="Any") for i in range(96)]
    api = Api({c["metadata"]["name"]: c for c in claims})
    async with client_of(api) as client, kubelet_of(rig.shares(), client, rig.root / "k") as kubelet:
        begun = time.monotonic()
        answers = await asyncio.gather(*(kubelet.prepare(c) for c in claims))
        took_s = time.monotonic() - begun
        assert {a.error for answer in answers for a in answer.values()} == {""}
        assert took_s < 40, "within one call of the kubelet"
        assert len(rig.shares().store.all()) == 96
        answers = await asyncio.gather(*(kubelet.unprepare(c) for c in claims))
        assert {a.error for answer in answers for a in answer.values()} == {""}
    assert rig.leftovers() == []


@pytest.mark.case("F10", "L5")
async def test_two_agents_side_by_side_serve_the_same_shares(rig: Any, runner: Any) -> None:
    """A rolling update (cases F10, L5): either answers for what the other made, and one stops without a trace."""
    claim = rig.claim(device=A100)
    api = Api({"claim-c1": claim})
    folder = rig.root / "k"
    async with client_of(api) as client, kubelet_of(rig.shares(), client, folder) as old:
        first = (await old.prepare(claim))["c1"]
        new = Plugin(
            client,
            rig.shares(),
            kubelet=folder,
            pod_uid="new",
            registered=lambda: None,
            changed=lambda: None,
            metrics=NodeMetrics(),
        )
        await new.start()
        sockets = sorted(p.name for p in folder.rglob("*.sock"))
        assert len(sockets) == 4, "each has its own"
        async with grpc.aio.insecure_channel(f"unix:{folder}/plugins/gpulet.dev/new.sock") as channel:
            assert (await Kubelet(channel).prepare(claim))["c1"] == first
            assert (await Kubelet(channel).unprepare(claim))["c1"].error == ""
        assert (await old.unprepare(claim))["c1"].error == "", "what the other undid is undone"
        await new.stop()
        assert sorted(p.name for p in folder.rglob("*.sock")) == ["agent.sock", "gpulet.dev-agent-reg.sock"]
    assert rig.leftovers() == []


async def test_a_refusal_is_told_in_the_claim_once_and_taken_back(rig: Any, runner: Any) -> None:
    """The pod's event is seen by few; the claim's condition is what the controller shows."""
    first, second = (rig.claim(uid, A100, percent=20, isolation="None") for uid in ("c1", "c2"))
    api = Api({c["metadata"]["name"]: c for c in (first, second)})
    async with client_of(api) as client, kubelet_of(rig.shares(), client, rig.root / "k") as kubelet:
        assert (await kubelet.prepare(first))["c1"].error == ""
        said = (await kubelet.prepare(second))["c2"].error
        (written,) = api.written["claim-c2"]
        (device,) = written["status"]["devices"]
        (condition,) = device["conditions"]
        assert (condition["type"], condition["status"], condition["reason"]) == ("Ready", "False", "PrepareRefused")
        assert said and condition["message"] == said
        second["status"]["devices"] = written["status"]["devices"]
        assert (await kubelet.prepare(second))["c2"].error == said
        assert len(api.written["claim-c2"]) == 1 and "claim-c1" not in api.written
        await kubelet.unprepare(first)
        assert (await kubelet.prepare(second))["c2"].error == ""
        await Watcher(client, rig.shares(), NodeMetrics(), proc=Path("/proc"), period_s=1).look()
        (device,) = api.written["claim-c2"][-1]["status"]["devices"]
        assert {c["type"]: c["status"] for c in device["conditions"]} == {"Ready": "True", "Enforced": "Unknown"}
        await kubelet.unprepare(second)


async def test_what_the_calls_cost_and_how_they_end_is_exported(rig: Any, runner: Any) -> None:
    claim, unknown = rig.claim(device=A100), rig.claim("c2", A100)
    metrics = NodeMetrics()
    api = Api({"claim-c1": claim})
    async with client_of(api) as client, kubelet_of(rig.shares(), client, rig.root / "k", metrics) as kubelet:
        await kubelet.prepare(claim, unknown)
        await kubelet.unprepare(claim)
    for call, outcome in (("prepare", "ok"), ("prepare", "error"), ("unprepare", "ok")):
        labels = {"call": call, "outcome": outcome}
        assert metrics.registry.get_sample_value("gpulet_node_call_duration_seconds_count", labels) == 1
