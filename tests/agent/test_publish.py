"""Slices over time: what changes is published, what does not is not written, taints go after a healthy while."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gpulet.agent.foreign import Owner
from gpulet.agent.publish import Publisher
from gpulet.agent.shares import Shares
from gpulet.nvidia.simulated import SimulatedSource
from tests.agent.conftest import A100, NODE, Rig
from tests.agent.kubelet import Api, client_of

NODE_OBJECT = {"metadata": {"name": NODE, "uid": "node-uid"}}


def shares_of(rig: Rig, *, mig: bool) -> Shares:
    """Of a node with one A100 that is cut, or not."""
    source = SimulatedSource(NODE, [(A100, mig, 500)], rig.state / "one.json", rig.state / "faults.json", "Never")
    return Shares(node=NODE, source=source, daemons=rig.daemons, state=rig.state, cdi_folder=rig.cdi)


@asynccontextmanager
async def publishing(api: Api, shares: Shares, clear_s: float = 300.0) -> AsyncIterator[Publisher]:
    known = asyncio.Event()
    known.set()
    async with client_of(api) as client:
        publisher = Publisher(client, shares, open_to_all=False, taint_clear_s=clear_s, owners_known=known)
        # What the informer would have listed.
        for written in api.written.values():
            publisher.informer.learn(written[-1])
        yield publisher


def devices(api: Api) -> list[dict[str, Any]]:
    return [d for written in api.written.values() for d in written[-1]["spec"].get("devices", ())]


def writes(api: Api) -> int:
    return sum(len(written) for written in api.written.values())


@pytest.mark.case("M5", "C5")
async def test_what_did_not_change_is_not_written_again(rig: Rig) -> None:
    """Cases M5, C5: by this agent or by the next."""
    api = Api({NODE: NODE_OBJECT})
    shares = shares_of(rig, mig=False)
    async with publishing(api, shares) as publisher:
        await publisher.publish()
        assert writes(api) == 2
        await publisher.publish()
    async with publishing(api, shares) as publisher:
        await publisher.publish()
    assert writes(api) == 2
    assert [d["name"] for d in devices(api)] == ["gpu-0"]


@pytest.mark.case("C14", "C23", "A27")
async def test_a_gpu_that_was_cut_is_published_anew_by_itself(rig: Rig) -> None:
    """Cases C14, C23, A27: in both directions, as one pool of the next generation."""
    api = Api({NODE: NODE_OBJECT})
    for mig, count in ((False, 1), (True, 18), (False, 1)):
        async with publishing(api, shares_of(rig, mig=mig)) as publisher:
            await publisher.look_for_changes()
            assert publisher._wake.is_set()
            await publisher.publish()
        assert len(devices(api)) == count
    generations = {w[-1]["spec"]["pool"]["generation"] for w in api.written.values()}
    assert generations == {3}


@pytest.mark.case("C11")
async def test_slices_belong_to_the_node_as_it_is_now(rig: Rig) -> None:
    """Case C11: a node that was deleted and joined again under its name has another uid."""
    api = Api({NODE: NODE_OBJECT})
    async with publishing(api, shares_of(rig, mig=False)) as publisher:
        await publisher.publish()
    api.claims[NODE] = {"metadata": {"name": NODE, "uid": "joined-again"}}
    # With the old Node object its slices went.
    api.written.clear()
    async with publishing(api, shares_of(rig, mig=False)) as publisher:
        await publisher.publish()
    assert {w[-1]["metadata"]["ownerReferences"][0]["uid"] for w in api.written.values()} == {"joined-again"}


@pytest.mark.case("N1", "N2")
async def test_a_taint_goes_only_after_a_healthy_while_and_a_new_agent_waits_anew(rig: Rig) -> None:
    """Cases N1, N2."""
    api = Api({NODE: NODE_OBJECT})
    shares = shares_of(rig, mig=False)
    rig.state.mkdir(exist_ok=True)
    faults = rig.state / "faults.json"
    (gpu,) = shares.source.gpus()

    def taints() -> list[dict[str, str]]:
        (device,) = devices(api)
        return device.get("taints", [])

    async with publishing(api, shares, clear_s=0.4) as publisher:
        faults.write_text(json.dumps({"health": {gpu.uuid: "lost"}}))
        await publisher.publish()
        assert taints() == [{"key": "gpulet.dev/unhealthy", "value": "lost", "effect": "NoExecute"}]
        faults.unlink()
        await publisher.publish()
        assert len(taints()) == 1, "healthy for no time yet"
    async with publishing(api, shares, clear_s=0.4) as publisher:
        await publisher.publish()
        assert len(taints()) == 1, "a new agent does not know for how long"
        await asyncio.sleep(0.5)
        await publisher.look_for_changes()
        assert publisher._wake.is_set(), "it looks again by itself"
        await publisher.publish()
        assert taints() == []


async def test_an_admins_word_ends_the_wait(rig: Rig) -> None:
    """Slices that were deleted carry no taint to remember."""
    api = Api({NODE: NODE_OBJECT})
    shares = shares_of(rig, mig=False)
    rig.state.mkdir(exist_ok=True)
    (gpu,) = shares.source.gpus()
    (rig.state / "faults.json").write_text(json.dumps({"health": {gpu.uuid: "degraded"}}))
    async with publishing(api, shares) as publisher:
        await publisher.publish()
        (rig.state / "faults.json").unlink()
        api.written.clear()
        publisher.informer.objects.clear()
        await publisher.publish()
    assert [d.get("taints") for d in devices(api)] == [None]


@pytest.mark.case("A9")
async def test_both_taints_come_and_go_by_themselves(rig: Rig) -> None:
    api = Api({NODE: NODE_OBJECT})
    shares = shares_of(rig, mig=False)
    (gpu,) = shares.source.gpus()
    async with publishing(api, shares, clear_s=0.0) as publisher:
        for owners, keys in (({gpu.uuid: Owner("HAMi", "m")}, ["gpulet.dev/withdrawn"]), ({}, [])):
            shares.withdrawn.write(owners)
            await publisher.look_for_changes()
            assert publisher._wake.is_set()
            publisher._wake.clear()
            await publisher.publish()
            (device,) = devices(api)
            assert [t["key"] for t in device.get("taints", ())] == keys
            assert device["attributes"]["withdrawn"]["string"] == (owners[gpu.uuid].reason if owners else "")
