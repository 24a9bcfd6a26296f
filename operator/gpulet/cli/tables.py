"""The tables of `gpulet top`, and the same as JSON. Pure: from what was read to what is shown."""

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gpulet.api import names
from gpulet.api.gpulet import Gpulet
from gpulet.api.inferencemodel import InferenceModel
from gpulet.api.modelprofile import ModelProfile
from gpulet.cli.waiting import waiting
from gpulet.cli.words import condition, device, device_names, number, objective, reason, result_of, workload
from gpulet.controller.profiles import points_of
from gpulet.controller.world import World

_STYLES = {"True": "green", "False": "red", "Unknown": "yellow", "-": "dim"}


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


def jobs_table(world: World) -> Table:
    table = Table(title="Tuning", title_justify="left", expand=False)
    for column in ("job", "phase", "trials", "clients", "servers", "percent", "before ms", "after ms", "result"):
        table.add_column(column, no_wrap=True)
    for key, job in sorted(world.jobs.items()):
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
            result_of(world, job),
        )
    return table


def profiles_table(profiles: Mapping[Any, ModelProfile]) -> Table:
    table = Table(title="Profiles", title_justify="left", expand=False)
    for column in ("profile", "ready", "points"):
        table.add_column(column, no_wrap=True)
    for key, profile in sorted(profiles.items()):
        points = f"{len(points_of(profile))}"
        if profile.status.wanted:  # of given points nothing else is wanted
            points += f"/{profile.status.wanted}"
        table.add_row("/".join(key), f"{_styled(condition(profile, 'Ready'))} {reason(profile, 'Measured')}", points)
    return table


def tables(world: World) -> Group:
    """Everything at one moment."""
    parts: list[RenderableType] = [models_table(world.models), gpulets_table(world)]
    if world.profiles:
        parts.append(profiles_table(world.profiles))
    if world.jobs:
        parts.append(jobs_table(world))
    # As text: a message may hold square brackets, which are markup to rich.
    parts += [Text(f"note: {line}") for line in waiting(world)]
    return Group(*parts)


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
