"""`gpulet bench`: an open-loop load on served models, bounded in time and count.

Requests arrive as a Poisson stream that does not wait for answers, so that queueing is seen as callers see it; latency
counts from the moment a request was due. Targets are only loopback addresses, Services of the cluster, and private
ranges that the caller names.
"""

import asyncio
import ipaddress
import random
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from gpulet.v2.tensors import Payload, payload

MAX_REQUESTS = 1_000_000
MAX_SECONDS = 3600.0
# Beyond this an open loop only measures its own memory: requests due while so many wait are counted as not sent.
MAX_IN_FLIGHT = 256
_CLUSTER_SUFFIXES = (".svc", ".svc.cluster.local")

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class BenchError(ValueError):
    """The load is refused or impossible; the message names the argument and the remedy."""


@dataclass(frozen=True)
class Target:
    """One model under load."""

    url: str
    """Of the model: http://host:port/v2/models/NAME."""
    rate_per_s: float
    shape: tuple[int, ...] | None = None
    """Of each input, batch dimension included; None: the model's own, with 1 for what is free."""

    @property
    def model(self) -> str:
        return self.url.rstrip("/").rsplit("/", 1)[-1]


@dataclass
class Tally:
    """What came back from one target."""

    latencies_s: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    sent: int = 0
    last_answer_s: float = 0.0
    """After the start."""


def schedule(rate_per_s: float, seconds: float, seed: int) -> list[float]:
    """Arrival times of a Poisson stream in seconds after the start; the same seed gives the same stream."""
    chance, at = random.Random(seed), 0.0
    times: list[float] = []
    while True:
        at += chance.expovariate(rate_per_s)
        if at >= seconds:
            return times
        times.append(at)


def check_bounds(targets: Sequence[Target], seconds: float) -> None:
    """Raises BenchError for a load without sensible bounds."""
    if not targets:
        raise BenchError("URL: give at least one model to load")
    if not 0 < seconds <= MAX_SECONDS:
        raise BenchError(f"--seconds {seconds:g}: more than 0 and at most {MAX_SECONDS:g}")
    for target in targets:
        if target.rate_per_s <= 0:
            raise BenchError(f"--rate {target.rate_per_s:g}: more than 0")
        if "/v2/models/" not in target.url:
            raise BenchError(f"{target.url}: give the model's URL, such as http://host:8000/v2/models/NAME")
    wanted = sum(target.rate_per_s for target in targets) * seconds
    if wanted > MAX_REQUESTS:
        raise BenchError(f"--rate x --seconds is {wanted:.0f} requests; at most {MAX_REQUESTS} in one run")


def private_network(text: str) -> Network:
    """An explicitly allowed range; raises BenchError unless all of it is private."""
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError as error:
        raise BenchError(f"--allow {text}: {error}") from error
    if not network.is_private:
        raise BenchError(f"--allow {text}: not a private range; a load test goes to machines of your own only")
    return network


def permitted(host: str, address: Address, allowed: Sequence[Network]) -> bool:
    """Whether load may go to ``address``, which ``host`` resolved to."""
    if address.is_loopback or any(address in network for network in allowed):
        return True
    return host.endswith(_CLUSTER_SUFFIXES) and address.is_private and not address.is_link_local


def _refusal(url: str, host: str, address: Address) -> str:
    """Why a target is not loaded, and what would do."""
    if address.is_private and not address.is_link_local:
        return (
            f"{url}: {address} is not loopback, and from the address alone it is not known whose it is: add --allow "
            f"{address} if it is yours (a Service's cluster IP is), or in a pod name the Service: NAME.NAMESPACE.svc"
        )
    return f"{url}: {host} is {address}, which is no private address: a load test goes to machines of your own only"


class Checked(AbstractResolver):
    """Resolves once and hands out only permitted addresses: a name cannot come to mean another place later."""

    def __init__(self, allowed: Sequence[Network]) -> None:
        self._allowed = allowed
        self._known: dict[str, str] = {}

    async def admit(self, url: str) -> None:
        """Raises BenchError unless every address of the URL's host is permitted."""
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise BenchError(f"{url}: give an http:// URL")
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_STREAM)
        except OSError as error:
            raise BenchError(f"{url}: {parts.hostname} cannot be resolved: {error}") from error
        addresses = [ipaddress.ip_address(entry[4][0]) for entry in found]
        for address in addresses:
            if not permitted(parts.hostname, address, self._allowed):
                raise BenchError(_refusal(url, parts.hostname, address))
        self._known[parts.hostname] = str(addresses[0])

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        address = self._known.get(host)
        if address is None:
            raise OSError(f"{host} was not admitted")
        kind = socket.AF_INET6 if ":" in address else socket.AF_INET
        return [
            ResolveResult(hostname=host, host=address, port=port, family=kind, proto=0, flags=socket.AI_NUMERICHOST)
        ]

    async def close(self) -> None:
        """Nothing is held."""


async def run(
    targets: Sequence[Target],
    *,
    seconds: float,
    seed: int = 0,
    allowed: Sequence[Network] = (),
    timeout_s: float = 30.0,
    progress: Callable[[list[Tally], float], None] = lambda tallies, elapsed_s: None,
) -> list[Tally]:
    """Load all targets at once for ``seconds``; one tally a target. ``progress`` is called every ten seconds.

    Raises BenchError if a target is refused or its model's metadata cannot be read.
    """
    check_bounds(targets, seconds)
    resolver = Checked(allowed)
    for target in targets:
        await resolver.admit(target.url)
    # One connection a request: a Service spreads connections, not requests, over replicas, and callers are many.
    connector = aiohttp.TCPConnector(resolver=resolver, force_close=True, limit=0, use_dns_cache=False)
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        payloads = [await _metadata(session, target, seed) for target in targets]
        tallies = [Tally() for _ in targets]
        started = time.perf_counter()
        reporter = asyncio.create_task(_report(progress, tallies, started))
        try:
            streams = zip(targets, payloads, tallies, strict=True)
            await asyncio.gather(
                *(
                    _stream(session, target, body, tally, schedule(target.rate_per_s, seconds, seed + i), started)
                    for i, (target, body, tally) in enumerate(streams)
                )
            )
        finally:
            reporter.cancel()
    return tallies


async def _metadata(session: aiohttp.ClientSession, target: Target, seed: int) -> Payload:
    try:
        async with session.get(target.url) as answer:
            if answer.status != 200:
                raise BenchError(f"{target.url}: {answer.status} {(await answer.text())[:200]}")
            described: dict[str, Any] = await answer.json()
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise BenchError(f"{target.url}: no answer: {error or type(error).__name__}") from error
    try:
        return payload(described, target.shape, seed)
    except ValueError as error:
        raise BenchError(f"{target.url}: {error}") from error


async def _report(progress: Callable[[list[Tally], float], None], tallies: list[Tally], started: float) -> None:
    while True:
        await asyncio.sleep(10)
        progress(tallies, time.perf_counter() - started)


async def _stream(
    session: aiohttp.ClientSession, target: Target, body: Payload, tally: Tally, times: list[float], started: float
) -> None:
    """Send at the given times, whatever comes back."""
    waiting: set[asyncio.Task[None]] = set()
    for at in times:
        pause = started + at - time.perf_counter()
        if pause > 0:
            await asyncio.sleep(pause)
        if len(waiting) >= MAX_IN_FLIGHT:
            tally.errors["NotSent"] += 1
            continue
        task = asyncio.create_task(_request(session, target, body, tally, started, started + at))
        waiting.add(task)
        task.add_done_callback(waiting.discard)
    await asyncio.gather(*waiting)


async def _request(
    session: aiohttp.ClientSession, target: Target, body: Payload, tally: Tally, started: float, due: float
) -> None:
    tally.sent += 1
    try:
        async with session.post(f"{target.url}/infer", data=body.body, headers=body.headers) as answer:
            await answer.read()
            failed = None if answer.status == 200 else f"Status{answer.status}"
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        failed = type(error).__name__
    now = time.perf_counter()
    tally.last_answer_s = now - started
    if failed is None:
        tally.latencies_s.append(now - due)
    else:
        tally.errors[failed] += 1


def quantile(values: Sequence[float], q: float) -> float | None:
    """The smallest value that at least the fraction ``q`` does not exceed; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, -(-int(q * 1_000_000) * len(ordered) // 1_000_000) - 1)]


def report(target: Target, tally: Tally, *, seconds: float) -> dict[str, Any]:
    """One target's figures, as JSON has them."""

    def ms(value: float | None) -> float | None:
        return None if value is None else round(value * 1000, 3)

    latencies = tally.latencies_s
    answered_s = max(seconds, tally.last_answer_s)
    return {
        "model": target.model,
        "url": target.url,
        "ratePerSecond": target.rate_per_s,
        "seconds": seconds,
        "sent": tally.sent,
        "answered": len(latencies),
        "errors": sum(tally.errors.values()),
        "errorKinds": dict(sorted(tally.errors.items())),
        "throughputPerSecond": round(len(latencies) / answered_s, 3),
        "latencyMilliseconds": {
            "mean": ms(sum(latencies) / len(latencies)) if latencies else None,
            "p50": ms(quantile(latencies, 0.50)),
            "p90": ms(quantile(latencies, 0.90)),
            "p99": ms(quantile(latencies, 0.99)),
            "max": ms(max(latencies, default=None)),
        },
    }
