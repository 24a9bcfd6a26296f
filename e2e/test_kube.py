"""Client, informer and Lease at a real API server."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.apiserver import apiserver as apiserver

from e2e.bad_objects import PROFILE
from gpulet.kube.client import Client, load_configuration
from gpulet.kube.difference import holds
from gpulet.kube.errors import ConflictError, InvalidError, NotFoundError
from gpulet.kube.events import Events
from gpulet.kube.informer import Informer
from gpulet.kube.kinds import CONFIG_MAP, EVENT, LEASE, MODEL_PROFILE
from gpulet.kube.lease import LeadershipLostError, Lease

pytestmark = pytest.mark.timeout(240)
NS = "default"


@pytest_asyncio.fixture
async def client(apiserver: Path) -> AsyncIterator[Client]:
    async with Client(await load_configuration(apiserver)) as made:
        yield made


def settings(name: str, value: str = "1", **labels: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": NS, "labels": labels}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"value": value}}


async def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  (the caches signal nobody)
            await asyncio.sleep(0.05)


async def test_apply_creates_updates_and_leaves_alone(client: Client) -> None:
    """Failure case M5: what holds already changes no version."""
    first = await client.apply(settings("a"))
    again = await client.apply(settings("a"))
    assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    assert holds(await client.get(CONFIG_MAP, "a", NS), settings("a"))
    changed = await client.apply(settings("a", "2"))
    assert changed["data"] == {"value": "2"} and not holds(first, settings("a", "2"))


async def test_status_and_spec_are_written_apart(client: Client) -> None:
    """Failure case H9: a write of the status is no new generation."""
    metadata = {"name": "apart", "namespace": NS}
    head = {"apiVersion": MODEL_PROFILE.api_version, "kind": "ModelProfile", "metadata": metadata}
    first = await client.apply(head | {"spec": PROFILE})
    second = await client.apply_status(head | {"status": {"observedGeneration": 1}})
    assert second["status"] == {"observedGeneration": 1} and second["spec"] == first["spec"]
    assert second["metadata"]["generation"] == first["metadata"]["generation"]
    third = await client.apply(head | {"spec": PROFILE, "status": {"observedGeneration": 7}})
    assert third["status"] == {"observedGeneration": 1}


async def test_errors_are_of_one_family(client: Client) -> None:
    with pytest.raises(NotFoundError):
        await client.get(CONFIG_MAP, "nobody", NS)
    made = await client.create(settings("b"))
    with pytest.raises(ConflictError):
        await client.create(settings("b"))
    await client.apply(settings("b", "2"))
    with pytest.raises(ConflictError):
        await client.replace(made)
    with pytest.raises(InvalidError, match=r"metadata\.name"):
        await client.create(settings("Not_A_Name"))


async def test_delete_takes_only_the_object_that_was_meant(client: Client) -> None:
    made = await client.create(settings("c"))
    await client.delete(CONFIG_MAP, "c", NS, uid="00000000-0000-0000-0000-000000000000")
    await client.get(CONFIG_MAP, "c", NS)
    await client.delete(CONFIG_MAP, "c", NS, uid=made["metadata"]["uid"])
    with pytest.raises(NotFoundError):
        await client.get(CONFIG_MAP, "c", NS)


async def test_a_long_list_is_read_in_pages(client: Client) -> None:
    await asyncio.gather(*(client.apply(settings(f"many-{i}", many="yes")) for i in range(510)))
    items, version = await client.list(CONFIG_MAP, labels="many=yes")
    assert len({i["metadata"]["name"] for i in items}) == 510 and int(version) > 0


async def test_an_informer_follows_what_it_selects(client: Client) -> None:
    """Failure case M2."""
    await client.apply(settings("old", watched="yes"))
    informer = Informer(client, CONFIG_MAP, changed=lambda: None, namespace=NS, labels="watched=yes")
    task = asyncio.create_task(informer.run())
    try:
        await asyncio.wait_for(informer.synced.wait(), 20)
        await client.apply(settings("new", watched="yes"))
        await client.apply(settings("other", watched="no"))
        await until(lambda: set(informer.objects) == {(NS, "old"), (NS, "new")})
        await client.merge(CONFIG_MAP, "old", NS, {"metadata": {"labels": {"watched": None}}})
        await client.apply(settings("new", "2", watched="yes"))
        await until(lambda: [o["data"]["value"] for o in informer.objects.values()] == ["2"])
        assert informer.relists == 1
    finally:
        task.cancel()


async def test_a_lease_is_handed_over_at_once_and_lost_to_a_thief(client: Client) -> None:
    first, second = (Lease(client, NS, "l", name, retry_s=0.2) for name in ("a", "b"))
    await first.acquire()
    waiting = asyncio.create_task(second.acquire())
    await asyncio.sleep(0.5)
    assert not waiting.done()
    await first.release()
    await asyncio.wait_for(waiting, 5)
    spec = (await client.get(LEASE, "l", NS))["spec"]
    assert (spec["holderIdentity"], spec["leaseTransitions"]) == ("b", 1)
    await client.merge(LEASE, "l", NS, {"spec": {"holderIdentity": "thief"}})
    with pytest.raises(LeadershipLostError, match="another one leads"):
        await asyncio.wait_for(second.hold(), 5)


async def test_an_event_is_posted_once(client: Client) -> None:
    about = await client.apply(settings("subject"))
    events = Events(client, "test-0")
    for _ in range(2):
        await events.tell(about, reason="Tested", message="it works", warning=False)
    told, _ = await client.list(EVENT, NS)
    assert [e["note"] for e in told if e["regarding"]["name"] == "subject"] == ["it works"]
    with suppress(NotFoundError):
        await client.delete(CONFIG_MAP, "subject", NS)
