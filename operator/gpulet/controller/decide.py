"""One pass, as a pure function of what is known: the plan is given, the actions are the answer, in their order.

Least disruptive first: shares and pods that are missing, then traffic, then removals, then the workers in the room
that is left, then statuses.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gpulet.api import names
from gpulet.api.modelprofile import ModelProfile
from gpulet.api.policy import Policy
from gpulet.api.tuningjob import TuningJob
from gpulet.build.gpulet import serving_gpulet
from gpulet.controller import profiling, tuning
from gpulet.controller.actions import Action, Apply, Delete, Keep, Leave, Tell, Unroute
from gpulet.controller.autotune import autotune
from gpulet.controller.children import children
from gpulet.controller.faults import apart, invalid_statuses
from gpulet.controller.inventory import gpus
from gpulet.controller.observations import Observations
from gpulet.controller.profiles import Choice, wanted_manifest
from gpulet.controller.refused import Object
from gpulet.controller.room import Room
from gpulet.controller.snapshot import revision
from gpulet.controller.statuses import Known, gpulet_statuses, model_statuses
from gpulet.controller.superseded import superseded
from gpulet.controller.transition import Scene, Steps, steps
from gpulet.controller.workloads import tenant_of
from gpulet.controller.world import Key, World, is_planned
from gpulet.model.demand import Isolation, ModelId
from gpulet.model.plan import Plan, Problem
from gpulet.model.sharing import Tenant
from gpulet.status.gpulet import pod_ready


@dataclass(frozen=True)
class Pass:
    """All that a pass knows."""

    world: World
    policy: Policy
    problem: Problem
    plan: Plan
    choices: Mapping[Key, Choice]
    rates_per_s: Mapping[Key, float]
    observations: Observations
    unrouted_for_s: Mapping[Key, float] = field(default_factory=dict)
    refused: Mapping[ModelId, str] = field(default_factory=dict)
    frozen: frozenset[Key] = frozenset()
    """Serving Gpulets that stay whatever the plan is."""
    names_taken: Mapping[Key, str] = field(default_factory=dict)
    """Models whose Service cannot be made, for somebody else's bears the name; with the remedy."""
    refused_children: Mapping[Object, str] = field(default_factory=dict)
    """What the API server says of a child that it does not accept, by its owner."""


def decide(known: Pass, *, now: datetime) -> list[Action]:
    """What to do now; carrying it out and deciding again comes to rest in the planned world."""
    scene = scene_of(known)
    transition = steps(scene)
    obsolete = frozenset(scene.serving - scene.desired.keys())
    room = Room(known.problem, known.plan)
    actions: list[Action] = [Apply(manifest) for manifest in transition.create]
    actions += children(known.world, plan=known.plan, room=room, obsolete=obsolete, policy=known.policy)
    actions += _leaving(known, scene, obsolete)
    actions += _kept(known, scene, transition)
    actions += _removals(known, transition)
    actions += _wanted_profiles(known)
    old = superseded(known.world, known.choices, settled=_settled(known, scene))
    actions += [Delete("ModelProfile", p.key, p.metadata.uid, "of an earlier file of its model") for p in old]
    refused = known.refused_children
    tuned = {
        m.key: autotune(known.world, m, known.plan, known.policy, refused=refused.get(("InferenceModel", m.key)))
        for m in _in_order(known.world.models)
    }
    actions += [action for one in tuned.values() for action in one.actions]
    actions += _measured(known, room, going={profile.key for profile in old}, now=now)
    actions += _tuned(known, room, now=now)
    results = Known(
        known.world,
        known.plan,
        known.choices,
        known.rates_per_s,
        known.observations,
        desired=frozenset(scene.desired) | known.frozen,
        planned={p.model: len(p.slots) for p in known.plan.placed},
        waiting=transition.waiting,
        refused=known.refused,
        names_taken=known.names_taken,
        tuned={key: one.fact for key, one in tuned.items() if one.fact is not None},
    )
    return [
        *actions,
        *model_statuses(results, now=now),
        *gpulet_statuses(results, now=now),
        *invalid_statuses(known.world, now=now),
    ]


def _measured(known: Pass, room: Room, *, going: set[Key], now: datetime) -> list[Action]:
    def one(profile: ModelProfile) -> list[Action]:
        words = known.refused_children.get(("ModelProfile", profile.key))
        return profiling.reconcile(known.world, profile, room, known.policy, refused=words, now=now)

    staying = {key: profile for key, profile in known.world.profiles.items() if key not in going}
    return apart(_in_order(staying), one, now=now)


def _tuned(known: Pass, room: Room, *, now: datetime) -> list[Action]:
    def one(job: TuningJob) -> list[Action]:
        return tuning.reconcile(
            known.world,
            job,
            plan=known.plan,
            room=room,
            progress=known.observations.progress.get(job.key),
            refused=known.refused_children.get(("TuningJob", job.key)),
            policy=known.policy,
            now=now,
        )

    return apart(_in_order(known.world.jobs), one, now=now)


def desired_gpulets(known: Pass) -> dict[Key, dict[str, Any]]:
    """The planned serving Gpulets as manifests, by key."""
    result = {}
    for slot in known.plan.slots:
        key = (slot.model.namespace, slot.model.name)
        model = known.world.models.get(key)
        if model is None:
            continue  # deleted while the plan was being made
        owner = {"apiVersion": names.API_VERSION, "kind": "InferenceModel", "metadata": model.metadata.to_dict()}
        manifest = serving_gpulet(slot, owner=owner, revision=revision(model, known.choices[key], known.policy))
        result[key[0], manifest["metadata"]["name"]] = manifest
    return result


def scene_of(known: Pass) -> Scene:
    """What exists and what is planned, for the transition."""
    existing = {k: g for k, g in known.world.gpulets.items() if g.metadata.deletion_timestamp is None}
    desired = desired_gpulets(known)
    tenants = {key: Tenant(key[0], _isolation(known, manifest)) for key, manifest in desired.items()}
    tenants |= {key: tenant_of(known.world, gpulet) for key, gpulet in existing.items()}
    return Scene(
        gpus=gpus(known.world.slices.values()),
        existing=existing,
        desired=desired,
        ready=frozenset(k for k in existing if pod_ready(known.world.pods.get(k))),
        unrouted_for_s=known.unrouted_for_s,
        planned_models=frozenset(p.model for p in known.plan.placed),
        serving=frozenset(k for k, g in existing.items() if g.spec.models and is_planned(g) and k not in known.frozen),
        tenants=tenants,
    )


def _isolation(known: Pass, manifest: dict[str, Any]) -> Isolation:
    model = known.world.models[manifest["metadata"]["namespace"], manifest["spec"]["models"][0]["name"]]
    return model.spec.sharing.isolation


def _leaving(known: Pass, scene: Scene, obsolete: frozenset[Key]) -> list[Action]:
    """Marks what is being replaced, so that no later plan keeps it or counts on its room before it is gone.

    A model that no longer fits keeps what it has while nobody needs the room: it is not marked.
    """
    actions: list[Action] = []
    for key in sorted(obsolete):
        gpulet = known.world.gpulets[key]
        model = ModelId(key[0], (gpulet.spec.models or [])[0].name)
        if model in scene.planned_models and names.LABEL_LEAVING not in gpulet.metadata.labels:
            actions.append(Leave(key))
    return actions


def _kept(known: Pass, scene: Scene, transition: Steps) -> list[Action]:
    """A spec that was put back in the middle of a rollout wants the old share again; a replacement may fail."""
    actions: list[Action] = [Keep(key, stays=False) for key in transition.reroute]
    for key in sorted(scene.desired.keys() & scene.serving):
        marked = names.LABEL_LEAVING in known.world.gpulets[key].metadata.labels
        if marked or (key in known.unrouted_for_s and key in known.world.pods):
            actions.append(Keep(key, stays=True))
    return actions


def _removals(known: Pass, transition: Steps) -> list[Action]:
    actions: list[Action] = []
    for key in transition.unroute:
        # A pod that never came up has no traffic to lose, and no label to take away.
        actions.append(Unroute(key))
    for removal in transition.remove:
        gpulet = known.world.gpulets[removal.key]
        actions.append(Delete("Gpulet", removal.key, gpulet.metadata.uid, removal.reason))
        if removal.reason != "Replaced":
            regarding = {"apiVersion": names.API_VERSION, "kind": "Gpulet", "metadata": gpulet.metadata.to_dict()}
            actions.append(Tell(regarding, removal.reason, "makes room for a planned share", warning=True))
    return actions


def _settled(known: Pass, scene: Scene) -> frozenset[Key]:
    """Models of which nothing exists but what is planned now."""
    other = scene.serving | known.frozen
    serving = {(k[0], m.name) for k in other - scene.desired.keys() for m in known.world.gpulets[k].spec.models or ()}
    return frozenset(known.world.models.keys() - serving)


def _wanted_profiles(known: Pass) -> list[Action]:
    """ModelProfiles that models need and nobody has made."""
    return [
        Apply(wanted_manifest(known.world.models[key], wanted, known.policy))
        for key, choice in sorted(known.choices.items(), key=lambda item: item[0])
        for wanted in choice.wanted_profiles
        if known.world.models[key].metadata.deletion_timestamp is None
    ]


def _in_order(objects: Mapping[Key, Any]) -> list[Any]:
    return [o for _, o in sorted(objects.items()) if o.metadata.deletion_timestamp is None]
