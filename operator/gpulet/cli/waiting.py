"""What is not as it should be yet, and why: a line an object, in the words of its conditions. Pure."""

from collections.abc import Iterator
from typing import Any

from gpulet.api.inferencemodel import InferenceModel
from gpulet.api.modelprofile import ModelProfile
from gpulet.api.tuningjob import TuningJob
from gpulet.cli.words import Result, result_of
from gpulet.controller.profiles import points_of
from gpulet.controller.world import Key, World
from gpulet.planner.sanity import remarks
from gpulet.status.conditions import find


def waiting(world: World) -> list[str]:
    """Models that do not serve, tunings that have not ended or won and are not served, profiles without all points.

    Also what is odd in a profile: a disturbed measurement is planned with as it is.
    """
    return [
        *(line for item in sorted(world.models.items()) for line in _model(world, *item)),
        *(line for item in sorted(world.jobs.items()) for line in _job(world, *item)),
        *(line for item in sorted(world.profiles.items()) for line in _profile(*item)),
    ]


def _said(thing: Any, type_: str) -> str | None:
    """Condition, reason and message; None once it is True."""
    found = find(thing.status.conditions, type_)
    if found is None:
        return f"no condition {type_} yet: is the controller running? kubectl get pods -n gpulet-system"
    if found.status == "True":
        return None
    return ": ".join(filter(None, (f"{type_} is {found.status} ({found.reason})", found.message)))


def _model(world: World, key: Key, model: InferenceModel) -> Iterator[str]:
    said = _said(model, "Ready")
    if said is None:
        return
    yield f"model {'/'.join(key)}: {said}"
    planned = find(model.status.conditions, "Planned")
    if planned is not None and planned.reason == "ObjectiveInfeasible":
        for profile in world.profiles_made_for(*key):
            yield (
                f"model {'/'.join(key)}: planned from what was measured; if the machine was busy then, "
                f"`kubectl delete gmp -n {key[0]} {profile.metadata.name}` has it measured anew"
            )


def _job(world: World, key: Key, job: TuningJob) -> Iterator[str]:
    said = _said(job, "Succeeded")
    if said is not None:
        yield f"tuning {'/'.join(key)}: {said}"
    elif result_of(world, job) is Result.WAITS:
        yield f"tuning {'/'.join(key)}: {Result.WAITS}: its profiles are measured first, then its shares start"


def _profile(key: Key, profile: ModelProfile) -> Iterator[str]:
    said = _said(profile, "Ready")
    if said is not None:
        yield f"profile {'/'.join(key)}: {said}"
    for remark in remarks(points_of(profile)):
        yield f"profile {'/'.join(key)}: {remark}"
