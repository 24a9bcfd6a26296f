"""`gpulet plan`: which shares of which GPUs models need, from manifests, from a cluster, or from both together."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console, Group
from rich.table import Table

from gpulet.api.inferencemodel import InferenceModel
from gpulet.api.policy import Policy
from gpulet.cli.fleet import fleet
from gpulet.cli.live import View
from gpulet.controller.demand import rate_to_plan
from gpulet.controller.observations import Observations
from gpulet.controller.profiles import choices_of
from gpulet.controller.question import Question
from gpulet.controller.read import read_world
from gpulet.controller.world import Key, Raw, World, key_of
from gpulet.model.demand import ModelId
from gpulet.model.plan import Plan, Problem, Unplaced
from gpulet.planner import plan as make_plan

_READ = ("InferenceModel", "ModelProfile", "TuningJob")
_KINDS = (
    *("InferenceModel", "TuningJob", "ModelProfile", "Gpulet", "ResourceClaim", "ResourceSlice", "Node"),
    *("Pod", "Service", "Job", "PersistentVolumeClaim", "PersistentVolume"),
)


class InputError(ValueError):
    """A manifest or an argument cannot be used; the message names it and the remedy."""


@dataclass(frozen=True)
class Answer:
    """A plan and how long it took. Models without a profile are among those that do not fit."""

    problem: Problem
    plan: Plan
    unplaced: tuple[Unplaced, ...]
    solve_seconds: float

    @property
    def all_fit(self) -> bool:
        return not self.unplaced


def manifests(paths: Iterable[Path]) -> list[Raw]:
    """InferenceModels, ModelProfiles and TuningJobs of YAML files, folders of them included; others are passed over.

    Raises InputError.
    """
    found: list[Raw] = []
    for path in paths:
        files = sorted([*path.rglob("*.yaml"), *path.rglob("*.yml")]) if path.is_dir() else [path]
        for file in files:
            found += _documents(file)
    return found


def _documents(file: Path) -> list[Raw]:
    try:
        documents = list(yaml.safe_load_all(file.read_text()))
    except (OSError, yaml.YAMLError) as error:
        raise InputError(f"{file}: cannot be read: {error}") from error
    found: list[Raw] = []
    for document in documents:
        if not isinstance(document, dict) or document.get("kind") not in _READ:
            continue
        metadata = document.get("metadata")
        if not isinstance(metadata, dict) or not metadata.get("name"):
            raise InputError(f"{file}: {document['kind']} without metadata.name: name it")
        metadata.setdefault("namespace", "default")
        found.append(document)
    return found


def offline(raws: Iterable[Raw]) -> World:
    """The world that these manifests alone describe. Raises InputError for one that cannot be read."""
    objects: dict[str, dict[Key, Raw]] = {kind: {} for kind in _KINDS}
    for raw in raws:
        objects[raw["kind"]][key_of(raw)] = raw
    world = read_world(objects)
    for invalid in world.invalid:
        raise InputError(f"{invalid.kind} {'/'.join(key_of(invalid.raw))}: {invalid.message}")
    return world


def merged(live: World, added: World) -> World:
    """The cluster as it would be with these objects; what has the same name is replaced."""
    return replace(
        live,
        models={**live.models, **added.models},
        profiles={**live.profiles, **added.profiles},
        jobs={**live.jobs, **added.jobs},
    )


def ask(raws: list[Raw], fleets: list[str], live: View | None, policy: Policy | None = None) -> Answer:
    """The planner's answer, under ``policy``, else the cluster's, else the default. Raises InputError or FleetError."""
    if live is None and not raws:
        raise InputError("PATH: give manifests with InferenceModels, or --from-cluster")
    if live is None and not fleets:
        raise InputError("--fleet: give the GPUs to plan for, such as --fleet NVIDIA-A100-SXM4-80GB=8")
    policy = policy or (live.policy if live is not None else Policy())
    world = merged(live.world, offline(raws)) if live is not None else offline(raws)
    if not world.models:
        raise InputError("no InferenceModel found: nothing to plan")
    choices = choices_of(world)
    rates = {key: _rate(model, policy) for key, model in world.models.items()}
    asked = Question(world, policy, Observations(), choices, rates).problem()
    if fleets:
        gpus, nodes = fleet(fleets)
        asked = replace(asked, gpus=gpus, nodes=nodes, usages=(), current=())
    started = time.perf_counter()
    made = make_plan(asked)
    seconds = time.perf_counter() - started
    without = [
        Unplaced(ModelId(*key), "NotProfiled", choice.profiled.message)
        for key, choice in sorted(choices.items())
        if choice.profile is None
    ]
    return Answer(asked, made, (*made.unplaced, *without), seconds)


def _rate(model: InferenceModel, policy: Policy) -> float:
    planned = model.status.rate.planned if model.status.rate else None
    return rate_to_plan(model, observed_per_s=None, previous_per_s=planned, policy=policy)


def as_json(answer: Answer) -> dict[str, Any]:
    """The keys that scripts may rely on."""
    plan = answer.plan
    models: list[dict[str, Any]] = [
        {
            "namespace": p.model.namespace,
            "name": p.model.name,
            "fits": True,
            "reason": p.reason,
            "predictedLatencyMilliseconds": round(p.predicted_latency_ms, 3),
            "sustainableRatePerSecond": round(p.sustainable_per_s, 3),
        }
        for p in plan.placed
    ]
    models += [
        {
            "namespace": u.model.namespace,
            "name": u.model.name,
            "fits": False,
            "reason": f"{u.reason}: {u.message}",
            "predictedLatencyMilliseconds": None,
        }
        for u in answer.unplaced
    ]
    return {
        "gpus": plan.gpus,
        "lowerBound": plan.lower_bound,
        "boundKind": plan.bound_kind,
        "boundCovers": list(plan.bound_covers),
        "solveSeconds": round(answer.solve_seconds, 4),
        "models": sorted(models, key=lambda m: (m["namespace"], m["name"])),
        "gpulets": [
            {
                "node": slot.device.node,
                "gpu": slot.device.gpu,
                "mig": None
                if slot.device.profile is None
                else {"profile": slot.device.profile, "start": slot.device.start},
                "computePercent": slot.compute_percent,
                "memory": f"{slot.memory_mib}Mi",
                "models": [
                    {"name": slot.model.name, "namespace": slot.model.namespace, "batch": slot.batch}
                    | {"instances": slot.instances}
                ],
            }
            for slot in sorted(plan.slots, key=lambda s: (s.device.node, s.device.gpu, s.device.start or 0, s.model))
        ],
    }


def as_tables(answer: Answer) -> Group:
    """The same for people."""
    plan = answer.plan
    shares = Table(title="Shares", title_justify="left")
    for column in ("node", "GPU", "MIG", "percent", "memory MiB", "model", "batch", "instances"):
        shares.add_column(column)
    for slot in sorted(plan.slots, key=lambda s: (s.device.node, s.device.gpu, s.device.start or 0, s.model)):
        mig = "-" if slot.device.profile is None else f"{slot.device.profile}@{slot.device.start}"
        shares.add_row(
            slot.device.node,
            slot.device.gpu,
            mig,
            str(slot.compute_percent),
            str(slot.memory_mib),
            str(slot.model),
            str(slot.batch),
            str(slot.instances),
        )
    models = Table(title="Models", title_justify="left")
    for column in ("model", "fits", "predicted ms", "why"):
        models.add_column(column)
    for placed in plan.placed:
        models.add_row(str(placed.model), "yes", f"{placed.predicted_latency_ms:.3g}", placed.reason)
    for unplaced in answer.unplaced:
        models.add_row(str(unplaced.model), "no", "-", f"{unplaced.reason}: {unplaced.message}")
    covers = f", covers {', '.join(plan.bound_covers)}" if plan.bound_covers else ""
    total = (
        f"{plan.gpus} GPUs of {len(answer.problem.gpus)}; lower bound {plan.lower_bound} ({plan.bound_kind}{covers}); "
        f"solved in {answer.solve_seconds * 1000:.0f} ms"
    )
    return Group(shares, models, total)


def show(answer: Answer, console: Console) -> None:
    console.print(as_tables(answer))
