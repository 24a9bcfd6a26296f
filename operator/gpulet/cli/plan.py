"""`gpulet plan`: which shares of which GPUs models need, from manifests, from a cluster, or from both together."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpulet.api.inferencemodel import InferenceModel
from gpulet.api.policy import Policy
from gpulet.cli.fleet import fleet, roomy_nodes
from gpulet.cli.live import View
from gpulet.cli.manifests import InputError, Manifests
from gpulet.controller.demand import rate_to_plan
from gpulet.controller.observations import Observations
from gpulet.controller.profiles import Choice, choices_of
from gpulet.controller.question import Question
from gpulet.controller.world import World
from gpulet.model.demand import ModelId
from gpulet.model.plan import Objective, Plan, Problem, Unplaced
from gpulet.model.steps import Step
from gpulet.planner import plan as make_plan
from gpulet.planner.steps import steps


@dataclass(frozen=True)
class Answer:
    """A plan and how long it took. Models without a profile are among those that do not fit."""

    problem: Problem
    plan: Plan
    unplaced: tuple[Unplaced, ...]
    solve_seconds: float
    notes: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()
    """The way from what exists to the plan."""

    @property
    def all_fit(self) -> bool:
        return not self.unplaced

    @property
    def rate_factor(self) -> float:
        """By which all planned rates could be multiplied together and still be served by these shares; 0: some are not.

        With objective ``rate`` it is what was planned for: that of the models which fit at all, and may be below 1.
        Planned rates have the policy's headroom in them.
        """
        if self.plan.rate_factor is not None:
            return self.plan.rate_factor
        asked = {d.model: d.requests_per_s for d in self.problem.demands}
        out = {u.model for u in self.unplaced}
        served = [p.sustainable_per_s / asked[p.model] for p in self.plan.placed if p.model not in out]
        return 0.0 if out or not served else min(served)


def ask(
    given: Manifests,
    fleets: Sequence[str],
    live: View | None,
    policy: Policy | None = None,
    objective: Objective = "gpus",
) -> Answer:
    """The planner's answer, under ``policy``, else the cluster's, else the default. Raises InputError or FleetError."""
    if live is None and not given.objects:
        raise InputError("PATH: give manifests with InferenceModels, or --from-cluster")
    if live is None and not fleets and not given.of("ResourceSlice"):
        raise InputError(
            "--fleet: give the GPUs to plan for, such as --fleet NVIDIA-A100-SXM4-80GB=8, or ResourceSlices among PATH"
        )
    policy = policy or (live.policy if live is not None else Policy())
    added = given.world()
    world = merged(live.world, added) if live is not None else added
    if not world.models:
        raise InputError("PATH: no InferenceModel of gpulet.dev found: nothing to plan")
    choices = choices_of(world)
    rates = {key: _rate(model, policy) for key, model in world.models.items()}
    question = Question(world, policy, Observations(), choices, rates)
    # A file does not say what a running pod was built from: every share in it counts as up to date.
    asked = question.problem() if live is not None else question.problem(leaving=frozenset())
    asked, notes = _with_devices(asked, fleets)
    asked = replace(asked, policy=replace(asked.policy, objective=objective))
    started = time.perf_counter()
    made = make_plan(asked)
    seconds = time.perf_counter() - started
    without = [
        Unplaced(ModelId(*key), "NotProfiled", _unprofiled(choice, live is not None))
        for key, choice in sorted(choices.items())
        if choice.profile is None
    ]
    unplaced = (*made.unplaced, *_short(asked, made), *without)
    return Answer(asked, made, unplaced, seconds, (*notes, *made.notes), steps(asked.current, made, asked))


def _short(asked: Problem, made: Plan) -> list[Unplaced]:
    """With objective ``rate``: models whose rate as it is, is more than the plan carries."""
    if made.rate_factor is None or made.rate_factor >= 1:
        return []
    rates = {d.model: d.requests_per_s for d in asked.demands}
    return [
        Unplaced(
            p.model,
            "RateBeyondCluster",
            f"these GPUs carry {made.rate_factor:.3g} times all rates together, here {p.sustainable_per_s:.4g} of "
            f"{rates[p.model]:.4g} requests/s: add GPUs or lower the rates",
        )
        for p in made.placed
        if p.sustainable_per_s < rates[p.model] * (1 - 1e-9)
    ]


def merged(live: World, added: World) -> World:
    """The cluster as it would be with these objects; what has the same name is replaced."""
    return replace(
        live,
        models={**live.models, **added.models},
        profiles={**live.profiles, **added.profiles},
        jobs={**live.jobs, **added.jobs},
        gpulets={**live.gpulets, **added.gpulets},
        slices={**live.slices, **added.slices},
        nodes={**live.nodes, **added.nodes},
    )


def _with_devices(asked: Problem, fleets: Sequence[str]) -> tuple[Problem, tuple[str, ...]]:
    """The problem on the GPUs of the fleet, if one is given; nodes that nobody described have room for everything."""
    if fleets:
        gpus, nodes = fleet(fleets)
        passed_over = len(asked.current) + len(asked.usages)
        notes = (f"{passed_over} Gpulets are not on GPUs of --fleet: passed over",) if passed_over else ()
        return replace(asked, gpus=gpus, nodes=nodes, usages=(), current=()), notes
    known = {node.name for node in asked.nodes}
    unknown = roomy_nodes(gpu.node for gpu in asked.gpus if gpu.node not in known)
    return replace(asked, nodes=tuple(sorted((*asked.nodes, *unknown), key=lambda n: n.name))), ()


def _rate(model: InferenceModel, policy: Policy) -> float:
    planned = model.status.rate.planned if model.status.rate else None
    return rate_to_plan(model, observed_per_s=None, previous_per_s=planned, policy=policy)


def _unprofiled(choice: Choice, live: bool) -> str:
    if live:
        return choice.profiled.message
    if choice.profiled.reason == "ProfileNotFound":
        return f"{choice.profiled.message.partition(';')[0]}: add the file that has it to PATH"
    return (
        "nothing is measured offline: write its points as a ModelProfile (spec.points; those that a cluster measured "
        "are in `kubectl get gmp NAME -o yaml`), name it in spec.profileRef and add the file to PATH"
    )
