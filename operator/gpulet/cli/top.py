"""`gpulet top`: the live table of models, shares and tuning; where there is no terminal, lines of what changed."""

import asyncio
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.live import Live

from gpulet.cli.live import look
from gpulet.cli.tables import tables
from gpulet.cli.waiting import waiting
from gpulet.cli.words import condition, device, device_names, reason, workload
from gpulet.controller.profiles import points_of
from gpulet.controller.world import World
from gpulet.kube.client import Client, load_configuration
from gpulet.kube.errors import KubeError


def lines(world: World) -> dict[str, str]:
    """One line an object, of what is worth a new line when it changes: no figure that only wobbles."""
    devices = device_names(world)
    result: dict[str, str] = {}
    for key, model in world.models.items():
        shares = " ".join(f"{line.compute_percent}%" for line in model.status.gpulets) or "none"
        result[f"model {'/'.join(key)}"] = (
            f"Ready={condition(model, 'Ready')} ({reason(model, 'Ready')}), shares {shares}, "
            f"ObjectiveMet={condition(model, 'ObjectiveMet')}"
        )
    for key, gpulet in world.gpulets.items():
        result[f"gpulet {'/'.join(key)}"] = (
            f"{gpulet.spec.compute_percent} % of {gpulet.spec.device.node} {device(gpulet, devices)}, "
            f"{workload(gpulet)}, Ready={condition(gpulet, 'Ready')}, Enforced={condition(gpulet, 'Enforced')}"
        )
    for key, profile in world.profiles.items():
        result[f"profile {'/'.join(key)}"] = f"{len(points_of(profile))} points, {reason(profile, 'Measured')}"
    for key, job in world.jobs.items():
        # Tens of trials: a line a candidate would drown the rest.
        done = (job.status.trials.done if job.status.trials else 0) * 10 // job.spec.trials
        result[f"tuning {'/'.join(key)}"] = (
            f"{job.status.phase or 'Pending'} ({reason(job, 'Succeeded')}), {done}0 % of {job.spec.trials} trials"
        )
    return result | _notes(world)


def _notes(world: World) -> dict[str, str]:
    """What is not as it should be, by object. Of a tuning under way its own line says enough; its message counts."""
    result: dict[str, str] = {}
    for line in waiting(world):
        name, _, why = line.partition(": ")
        if not (name.startswith("tuning ") and " is Unknown" in why):
            result[f"note on {name}"] = "; ".join(filter(None, (result.get(f"note on {name}"), why)))
    return result


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    """Lines of objects that came, changed or went."""
    for name in sorted(before.keys() | now.keys()):
        if name not in now:
            yield f"{name}: {'no more' if name.startswith('note on ') else 'gone'}"
        elif before.get(name) != now[name]:
            yield f"{name}: {now[name]}"


class Screen:
    """Shows a world: a live table on a terminal, else a line for each change. A context manager."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=False)
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None
        self._before: dict[str, str] = {}

    def __enter__(self) -> "Screen":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, world: World) -> None:
        if self._live is not None:
            self._live.update(tables(world), refresh=True)
            return
        now = lines(world)
        stamp = datetime.now(UTC).strftime("%H:%M:%S")
        for line in changes(self._before, now):
            self._console.print(f"{stamp} {line}", markup=False, highlight=False, soft_wrap=True)
        self._before = now

    def say(self, line: str) -> None:
        """A line between the tables."""
        stamp = datetime.now(UTC).strftime("%H:%M:%S")
        self._console.print(f"{stamp} {line}", markup=False, highlight=False, soft_wrap=True)


async def follow(
    kubeconfig: Path | None,
    screen: Screen,
    *,
    until: Callable[[World], bool],
    period_s: float = 2.0,
    timeout_s: float | None = None,
) -> World:
    """Show the cluster every ``period_s`` until ``until`` says so.

    A server that is away for a moment is asked again. Raises TimeoutError after ``timeout_s``, naming what is missing.
    """
    deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
    missing: list[str] = []
    async with Client(await load_configuration(kubeconfig)) as client:
        while deadline_s is None or time.monotonic() < deadline_s:
            try:
                world = await look(client)
            except KubeError as error:
                if not error.retryable:
                    raise
                missing = [str(error)]
                screen.say(str(error))
            else:
                missing = waiting(world) or ["all is Ready, but not what was waited for"]
                screen.show(world)
                if until(world):
                    return world
            await asyncio.sleep(period_s)
    raise TimeoutError("\n  ".join([f"waited {timeout_s:g} s in vain; at the end:", *missing]))


async def run(kubeconfig: Path | None, *, once: bool) -> None:
    """Until interrupted; ``once``, or without a terminal, prints the tables and ends."""
    if once or not sys.stdout.isatty():
        async with Client(await load_configuration(kubeconfig)) as client:
            Console(width=None if sys.stdout.isatty() else 160).print(tables(await look(client)))
        return
    with Screen() as screen:
        await follow(kubeconfig, screen, until=lambda _: False)
