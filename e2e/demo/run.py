"""The demo from beginning to end."""

import asyncio
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from rich.console import Console

from e2e.cluster.commands import say
from e2e.cluster.paths import REPOSITORY
from e2e.demo import install, load, summary
from e2e.demo.install import NAMESPACE
from e2e.kubectl import Kubectl
from gpulet.api.inferencemodel import InferenceModel
from gpulet.cli.live import view
from gpulet.cli.manifests import Manifests
from gpulet.cli.plan import ask
from gpulet.cli.plan_shown import as_json
from gpulet.cli.top import Screen, follow
from gpulet.cli.words import Result, condition, result_of
from gpulet.controller.world import World

# How long callers keep calling after the demo, so that conditions can be read.
LIGHT_LOAD_S = 1800
LOAD_S = 30
_SCENE_TIMEOUT_S = 480.0
_PREFIX, _LIGHT = "load", "light"


@dataclass
class Scene:
    """Starts the load of each model as soon as it serves, and knows when the demo has seen what it is to show."""

    kubectl: Kubectl
    screen: Screen
    loaded: set[str] = field(default_factory=set)

    def is_over(self, world: World) -> bool:
        """Everything serves, tuning has ended, and a tuned artifact that won is what serves."""
        for namespace, name in sorted(world.models):
            ready = condition(world.models[namespace, name], "Ready") == "True"
            if namespace == NAMESPACE and ready and name not in self.loaded:
                self._load(world, name)
        return (
            bool(world.models)
            and all(condition(model, "Ready") == "True" and _at_rest(model) for model in world.models.values())
            and all(_ended(world, key) for key in world.jobs)
        )

    def _load(self, world: World, name: str) -> None:
        if load.start(self.kubectl, world, name, prefix=_LIGHT, seconds=LIGHT_LOAD_S):
            self.loaded.add(name)
            self.screen.say(
                f"load on {name}: {world.models[NAMESPACE, name].spec.load.requests_per_second:g} requests/s"
            )


def _at_rest(model: InferenceModel) -> bool:
    """No share of it is leaving: what is counted then is the plan's."""
    replicas = model.status.replicas
    return replicas is not None and len(model.status.gpulets) == replicas.planned == replicas.ready


def _ended(world: World, key: tuple[str, str]) -> bool:
    job = world.jobs[key]
    return job.status.phase in ("Succeeded", "Failed") and result_of(world, job) is not Result.WAITS


def run(name: str, console: Console) -> dict[str, Any]:
    """Bring everything up and show it; returns the summary's facts. Raises TimeoutError if the scene does not end."""
    began = monotonic()
    kubectl = install.cluster(name, say)
    install.gpulet(kubectl, say)
    say(f"Gpulet is installed after {monotonic() - began:.0f} s")
    install.examples(kubectl, say)
    with Screen(console) as screen:
        scene = Scene(kubectl, screen)
        asyncio.run(follow(kubectl.kubeconfig, screen, until=scene.is_over, timeout_s=_SCENE_TIMEOUT_S))
        screen.say(f"all models serve and tuning has ended; callers measure for {LOAD_S} s")
        world = asyncio.run(_measured(kubectl, screen))
    found = facts(kubectl, world)
    found["seconds"] = round(monotonic() - began, 1)
    summary.show(found, console)
    _farewell(kubectl, name, console, found["seconds"])
    return found


async def _measured(kubectl: Kubectl, screen: Screen) -> World:
    """A minute with callers at the planned rates, after what happened has settled."""
    world = (await view(kubectl.kubeconfig)).world
    names = sorted(name for namespace, name in world.models if namespace == NAMESPACE)
    load.stop(kubectl)
    for name in names:
        load.start(kubectl, world, name, prefix=_PREFIX, seconds=LOAD_S)

    def done(_: World) -> bool:
        return len(load.reports(kubectl, _PREFIX, names)) == len(names)

    world = await follow(kubectl.kubeconfig, screen, until=done, period_s=4.0, timeout_s=LOAD_S + 60)
    for name in names:
        load.start(kubectl, world, name, prefix=_LIGHT, seconds=LIGHT_LOAD_S)
    return world


def facts(kubectl: Kubectl, world: World | None = None) -> dict[str, Any]:
    """The summary of a cluster where the demo ran."""
    seen = asyncio.run(view(kubectl.kubeconfig))
    world = world or seen.world
    names = sorted(name for namespace, name in world.models if namespace == NAMESPACE)
    return summary.facts(world, as_json(ask(Manifests(), [], seen)), load.reports(kubectl, _PREFIX, names))


def _farewell(kubectl: Kubectl, name: str, console: Console, seconds: float) -> None:
    lines = [
        "",
        f"The demo took {seconds:.0f} s. The cluster stays up; callers go on for {LIGHT_LOAD_S // 60} minutes.",
        "Look around:",
        f"  {install.context(kubectl)}",
        f"  export PATH={REPOSITORY / '.venv/bin'}:$PATH    # kubectl, gpulet",
        "  kubectl get gim,gtj,gmp,gpl -A",
        "  gpulet top; gpulet map; gpulet explain demo/gestures; gpulet plan --from-cluster",
        f"Take it down: make demo-down{'' if name == 'gpulet' else f' CLUSTER={name}'}",
    ]
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
