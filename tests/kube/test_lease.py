"""Leader election: two never lead together, and a lost Lease ends the leader."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from gpulet.kube.errors import ConflictError, NotFoundError, UnavailableError
from gpulet.kube.lease import LeadershipLostError, Lease


class LeaseServer:
    """One Lease with the API server's rules: resourceVersion checked on replace, create once, and outages."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.down = False
        self.answer_delay_s = 0.0

    def _up(self) -> None:
        if self.down:
            raise UnavailableError("connection refused")

    def _stored(self, manifest: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        self.lease = manifest | {"metadata": manifest["metadata"] | {"resourceVersion": str(self.version)}}
        return self.lease

    async def get(self, *_: Any) -> dict[str, Any]:
        self._up()
        if self.lease is None:
            raise NotFoundError("no lease")
        return self.lease

    async def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        self._up()
        if self.lease is not None:
            raise ConflictError("exists")
        return self._stored(manifest)

    async def replace(self, manifest: dict[str, Any]) -> dict[str, Any]:
        self._up()
        assert self.lease is not None
        if manifest["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise ConflictError("moved on")
        stored = self._stored(manifest)
        await asyncio.sleep(self.answer_delay_s)
        return stored


def candidate(server: LeaseServer, name: str) -> Lease:
    return Lease(server, "ns", "l", name, duration_s=0.6, renew_deadline_s=0.3, retry_s=0.05)  # type: ignore[arg-type]


async def test_the_second_waits_until_the_first_hands_over() -> None:
    server = LeaseServer()
    first, second = candidate(server, "a"), candidate(server, "b")
    await first.acquire()
    holding = asyncio.create_task(first.hold())
    waiting = asyncio.create_task(second.acquire())
    await asyncio.sleep(1.0)
    assert not waiting.done()
    holding.cancel()
    await first.release()
    await asyncio.wait_for(waiting, 0.5)
    assert server.lease is not None and server.lease["spec"]["holderIdentity"] == "b"
    assert server.lease["spec"]["leaseTransitions"] == 1


async def test_a_leader_that_died_is_succeeded_after_the_duration() -> None:
    server = LeaseServer()
    await candidate(server, "a").acquire()
    second = candidate(server, "b")
    started = asyncio.get_running_loop().time()
    await asyncio.wait_for(second.acquire(), 3)
    assert asyncio.get_running_loop().time() - started >= 0.5


async def test_a_leader_that_cannot_renew_ends_before_another_may_lead() -> None:
    server = LeaseServer()
    first = candidate(server, "a")
    await first.acquire()
    server.down = True
    started = asyncio.get_running_loop().time()
    with pytest.raises(LeadershipLostError):
        await first.hold()
    assert asyncio.get_running_loop().time() - started < first.duration_s


async def test_a_deposed_leader_ends_at_once() -> None:
    server = LeaseServer()
    first = candidate(server, "a")
    await first.acquire()
    assert server.lease is not None
    server._stored(server.lease | {"spec": server.lease["spec"] | {"holderIdentity": "thief"}})
    with pytest.raises(LeadershipLostError, match="another"):
        await asyncio.wait_for(first.hold(), 1)


async def test_a_stranger_s_write_does_not_depose() -> None:
    server = LeaseServer()
    first = candidate(server, "a")
    await first.acquire()
    holding = asyncio.create_task(first.hold())
    assert server.lease is not None
    server._stored(server.lease)
    await asyncio.sleep(0.3)
    assert not holding.done()
    holding.cancel()


async def test_times_have_six_digits() -> None:
    server = LeaseServer()
    await candidate(server, "a").acquire()
    assert server.lease is not None
    assert len(server.lease["spec"]["renewTime"].split(".")[1]) == 7


async def test_a_slow_answer_never_lets_two_lead() -> None:
    """Others count from when a renewal arrived, so the leader counts from when it was sent, not answered."""
    server, renewals = LeaseServer(), 0

    async def answer_once(manifest: dict[str, Any]) -> dict[str, Any]:
        nonlocal renewals
        renewals += 1
        if renewals > 1:
            await asyncio.sleep(3600)
        stored = await LeaseServer.replace(server, manifest)
        await asyncio.sleep(0.28)
        return stored

    first, second = candidate(server, "a"), candidate(server, "b")
    first.duration_s = second.duration_s = 0.45
    await first.acquire()
    first.client = SimpleNamespace(get=server.get, replace=answer_once)  # type: ignore[assignment]
    holding = asyncio.create_task(first.hold())
    waiting = asyncio.create_task(second.acquire())
    with pytest.raises(LeadershipLostError):
        await asyncio.wait_for(holding, 2)
    assert not waiting.done()
    await asyncio.wait_for(waiting, 2)


async def test_only_an_own_write_counts_as_a_renewal() -> None:
    """A stranger's writes, faster than ours, leave renewTime as it was: whoever waits takes over, so we must end."""
    server = LeaseServer()
    first = candidate(server, "a")
    await first.acquire()

    async def refuse(_: dict[str, Any]) -> dict[str, Any]:
        raise ConflictError("moved on")

    server.replace = refuse  # type: ignore[method-assign]
    with pytest.raises(LeadershipLostError, match="not renewed"):
        await asyncio.wait_for(first.hold(), 2)


async def test_a_release_after_a_renewal_that_was_cut_off_hands_over() -> None:
    server = LeaseServer()
    first = candidate(server, "a")
    await first.acquire()
    server.answer_delay_s = 10
    holding = asyncio.create_task(first.hold())
    await asyncio.sleep(0.15)
    holding.cancel()
    server.answer_delay_s = 0.0
    await first.release()
    assert server.lease is not None and server.lease["spec"]["holderIdentity"] == ""
