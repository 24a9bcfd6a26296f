"""`gpulet top`: the live table of models, shares and tuning; where there is no terminal, lines of what changed."""

import asyncio
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from gpulet.api import names
from gpulet.api.gpulet import Gpulet
from gpulet.api.inferencemodel import InferenceModel
from gpulet.api.modelprofile import ModelProfile
from gpulet.api.tuningjob import TuningJob
from gpulet.cli.live import look
from gpulet.controller.inventory import gpus
from gpulet.controller.world import World
from gpulet.kube.client import Client, load_configuration
from gpulet.kube.errors import KubeError
from gpulet.status.conditions import find

_STYLES = {"True": "green", "False": "red", "Unknown": "yellow", "-": "dim"}


def number(value: float | None, unit: str = "") -> str:
    """Three significant digits, or a dash."""
    return "-" if value is None else f"{value:.3g}{unit}"


def condition(thing: Any, type_: str) -> str:
    """A condition's status, or a dash while nobody has said anything."""
    found = find(thing.status.conditions, type_)
    return found.status if found is not None else "-"


def reason(thing: Any, type_: str) -> str:
    found = find(thing.status.conditions, type_)
    return found.reason if found is not None else "-"


def device_names(world: World) -> dict[str, str]:
    """``gpu-<n>`` by UUID: the number of the GPU on its node, as a person would say it."""
    counts: dict[str, int] = {}
    result = {}
    for gpu in gpus(world.slices.values()):
        index = counts.get(gpu.node, 0)
        counts[gpu.node] = index + 1
        result[gpu.uuid] = f"gpu-{index}"
    return result


def workload(gpulet: Gpulet) -> str:
    """What runs in a share."""
    if gpulet.spec.models:
        served = ", ".join(f"{m.name} b{m.batch}{' tuned' if m.artifact else ''}" for m in gpulet.spec.models)
        return f"serve {served}"
    if gpulet.spec.tuning:
        return f"tune {gpulet.spec.tuning.job} ({gpulet.spec.tuning.role})"
    return f"profile {gpulet.spec.profiling.profile}" if gpulet.spec.profiling else "-"


def objective(model: InferenceModel) -> str:
    slo = model.spec.slo
    return f"p{slo.percentile:g} <= {slo.latency_milliseconds:g} ms"


def _styled(status: str) -> str:
    return f"[{_STYLES.get(status, 'default')}]{status}[/]"


def models_table(models: Mapping[Any, InferenceModel]) -> Table:
    table = Table(title="Models", title_justify="left", expand=False)
    for column in ("model", "ready", "shares", "rate /s", "seen /s", "objective", "planned ms", "seen ms", "met"):
        table.add_column(column, no_wrap=True)
    for key, model in sorted(models.items()):
        status = model.status
        rate, latency = status.rate, status.latency
        table.add_row(
            "/".join(key),
            f"{_styled(condition(model, 'Ready'))} {reason(model, 'Ready')}",
            " ".join(f"{line.compute_percent}%" for line in status.gpulets) or "-",
            number(rate.planned if rate else None),
            number(rate.observed if rate else None),
            objective(model),
            number(latency.predicted_milliseconds if latency else None),
            number(latency.observed_percentile_milliseconds if latency else None),
            _styled(condition(model, "ObjectiveMet")),
        )
    return table


def gpulets_table(world: World) -> Table:
    devices = device_names(world)
    table = Table(title="Gpulets", title_justify="left", expand=False)
    for column in ("gpulet", "node", "device", "percent", "memory", "workload", "ready", "enforced"):
        table.add_column(column, no_wrap=True)
    for (_, name), gpulet in sorted(world.gpulets.items(), key=lambda i: (_place(i[1]), i[0])):
        table.add_row(
            name,
            gpulet.spec.device.node,
            device(gpulet, devices),
            f"{gpulet.spec.compute_percent}",
            gpulet.spec.memory,
            workload(gpulet),
            _styled(condition(gpulet, "Ready")),
            f"{_styled(condition(gpulet, 'Enforced'))} {reason(gpulet, 'Enforced')}",
        )
    return table


def _place(gpulet: Gpulet) -> tuple[str, str, int]:
    device_ref = gpulet.spec.device
    return device_ref.node, device_ref.gpu, device_ref.mig.start if device_ref.mig else 0


def device(gpulet: Gpulet, devices: Mapping[str, str]) -> str:
    """The GPU, and its placement if it is cut."""
    ref = gpulet.spec.device
    name = devices.get(ref.gpu, ref.gpu)
    return f"{name} {ref.mig.profile}@{ref.mig.start}" if ref.mig else name


def jobs_table(jobs: Mapping[Any, TuningJob]) -> Table:
    table = Table(title="Tuning", title_justify="left", expand=False)
    for column in ("job", "phase", "trials", "clients", "servers", "percent", "before ms", "after ms", "adopted"):
        table.add_column(column, no_wrap=True)
    for key, job in sorted(jobs.items()):
        status = job.status
        workers, latency = status.workers, status.latency
        table.add_row(
            "/".join(key),
            status.phase or "-",
            f"{status.trials.done if status.trials else 0}/{job.spec.trials}",
            number(workers.clients if workers else None),
            number(workers.servers if workers else None),
            number(status.compute_percent),
            number(latency.before_milliseconds if latency else None),
            number(latency.after_milliseconds if latency else None),
            "-" if status.adopted is None else str(status.adopted),
        )
    return table


def profiles_table(profiles: Mapping[Any, ModelProfile]) -> Table:
    table = Table(title="Profiles", title_justify="left", expand=False)
    for column in ("profile", "ready", "points"):
        table.add_column(column, no_wrap=True)
    for key, profile in sorted(profiles.items()):
        wanted = profile.status.wanted or len(profile.spec.points)
        table.add_row(
            "/".join(key),
            f"{_styled(condition(profile, 'Ready'))} {reason(profile, 'Ready')}",
            f"{profile.status.measured or len(profile.spec.points)}/{wanted}",
        )
    return table


def tables(world: World) -> Group:
    """Everything at one moment."""
    parts = [models_table(world.models), gpulets_table(world)]
    if world.profiles:
        parts.append(profiles_table(world.profiles))
    if world.jobs:
        parts.append(jobs_table(world.jobs))
    return Group(*parts)


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
        points = profile.status.measured or len(profile.spec.points)
        result[f"profile {'/'.join(key)}"] = f"{points} points, {reason(profile, 'Ready')}"
    for key, job in world.jobs.items():
        # Tens of trials: a line a candidate would drown the rest.
        done = (job.status.trials.done if job.status.trials else 0) * 10 // job.spec.trials
        result[f"tuning {'/'.join(key)}"] = f"{job.status.phase or 'Pending'}, {done}0 % of {job.spec.trials} trials"
    return result


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    """Lines of objects that came, changed or went."""
    for name in sorted(before.keys() | now.keys()):
        if name not in now:
            yield f"{name}: gone"
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
    """Show the cluster every ``period_s`` until ``until`` says so; raises TimeoutError after ``timeout_s``.

    A server that is away for a moment is asked again.
    """
    deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
    async with Client(await load_configuration(kubeconfig)) as client:
        while deadline_s is None or time.monotonic() < deadline_s:
            try:
                world = await look(client)
            except KubeError as error:
                if not error.retryable:
                    raise
                screen.say(str(error))
            else:
                screen.show(world)
                if until(world):
                    return world
            await asyncio.sleep(period_s)
    raise TimeoutError(f"waited {timeout_s:g} s in vain; the last lines tell what is not as it should be")


def snapshot(world: World) -> dict[str, Any]:
    """The tables' content as JSON has it."""
    devices = device_names(world)
    return {
        "models": [
            {"namespace": ns, "name": name, "objective": objective(model), "status": model.status.to_dict()}
            for (ns, name), model in sorted(world.models.items())
        ],
        "gpulets": [
            {
                "namespace": ns,
                "name": name,
                "node": gpulet.spec.device.node,
                "device": device(gpulet, devices),
                "computePercent": gpulet.spec.compute_percent,
                "memory": gpulet.spec.memory,
                "workload": workload(gpulet),
                "origin": gpulet.metadata.labels.get(names.LABEL_ORIGIN, names.ORIGIN_MANUAL),
                "status": gpulet.status.to_dict(),
            }
            for (ns, name), gpulet in sorted(world.gpulets.items())
        ],
        "profiles": [
            {"namespace": ns, "name": name, "measured": p.status.measured, "wanted": p.status.wanted}
            for (ns, name), p in sorted(world.profiles.items())
        ],
        "tuningJobs": [
            {"namespace": ns, "name": name, "trials": job.spec.trials, "status": job.status.to_dict()}
            for (ns, name), job in sorted(world.jobs.items())
        ],
    }


async def run(kubeconfig: Path | None, *, once: bool) -> None:
    """Until interrupted; ``once``, or without a terminal, prints the tables and ends."""
    if once or not sys.stdout.isatty():
        async with Client(await load_configuration(kubeconfig)) as client:
            Console(width=None if sys.stdout.isatty() else 160).print(tables(await look(client)))
        return
    with Screen() as screen:
        await follow(kubeconfig, screen, until=lambda _: False)
