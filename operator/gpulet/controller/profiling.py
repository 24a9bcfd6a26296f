"""From a ModelProfile that asks for measurements to its points: one Gpulet a share, where there is room. Pure."""

import json
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from gpulet.api import names
from gpulet.api.gpulet import Gpulet
from gpulet.api.inferencemodel import ModelSource
from gpulet.api.modelprofile import ModelProfile, ModelProfileStatus, Point, ProfileKey
from gpulet.api.policy import Policy
from gpulet.api.workload import ProfileReport
from gpulet.build.gpulet import Share, profiling_gpulet, share_of
from gpulet.build.names import short_hash
from gpulet.build.source import UnsupportedSourceError, model_file
from gpulet.controller.actions import Action, Apply, Delete, Tell, WriteStatus
from gpulet.controller.room import Room
from gpulet.controller.words import last_words
from gpulet.controller.world import World, deleting
from gpulet.status.conditions import Fact, conditions, find, kstatus, no, ready_from, yes
from gpulet.status.gpulet import disrupted


def reconcile(
    world: World,
    profile: ModelProfile,
    room: Room,
    policy: Policy,
    *,
    refused: str | None = None,
    now: datetime,
) -> list[Action]:
    """The next steps of one ModelProfile. ``refused``: what the API server says of a part that it does not accept."""
    if profile.spec.measure is None:
        return _status(profile, yes("Measured", "Given", f"{len(profile.spec.points)} points given"), [], None, now=now)
    source = source_of(world, profile)
    if isinstance(source, Fact):
        return _status(profile, source, profile.status.points, profile.status.key, now=now)
    gpulets = world.gpulets_of(names.LABEL_PROFILE, profile.metadata.namespace, profile.metadata.name)
    failed = _failed_before(profile)
    if failed is not None:
        ended: list[Action] = [Delete("Gpulet", g.key, g.metadata.uid, "profiling failed") for g in gpulets]
        return ended + _status(profile, failed, profile.status.points, profile.status.key, now=now)
    points, key, error = _gathered(world, profile, gpulets)
    if error is not None:
        remedy = f"{error}; mend it, then delete this ModelProfile to measure again"
        return _status(profile, no("Measured", "ProfilingFailed", remedy), points, key, now=now)
    missing = _missing_percents(profile, points)
    # The points are written first: should we die here, the pod's message is still there to be read again.
    if points != profile.status.points:
        return _status(profile, _measuring(missing), points, key, now=now)
    actions: list[Action] = [
        Delete("Gpulet", g.key, g.metadata.uid, "measured") for g in gpulets if g.spec.compute_percent not in missing
    ]
    started, fact = _start_missing(profile, missing, {g.spec.compute_percent for g in gpulets}, room, policy)
    if refused is not None and not fact.true:
        fact = no("Measured", "Refused", refused)
    return actions + started + _status(profile, fact, points, key, now=now)


def _gathered(
    world: World, profile: ModelProfile, gpulets: list[Gpulet]
) -> tuple[list[Point], ProfileKey | None, str | None]:
    """The points known and those that ended probers report; and the first error one reports."""
    points, key = list(profile.status.points), profile.status.key
    for gpulet in gpulets:
        report = report_of(world.pods.get(gpulet.key))
        if report is None:
            continue
        if report.error:
            return points, key, report.error
        points, key = _merged(points, report.points), _key(report)
    return points, key, None


def _start_missing(
    profile: ModelProfile, missing: set[int], running: set[int], room: Room, policy: Policy
) -> tuple[list[Action], Fact]:
    """Gpulets for the shares that are neither measured nor running, largest first, while there is room."""
    actions: list[Action] = []
    for percent in sorted(missing - running, reverse=True):
        manifest = _gpulet(profile, room, percent, policy)
        if manifest is None:
            if not running and not actions:
                assert profile.spec.measure is not None
                memory_mib = policy.profiling.memory_mebibytes
                reason = room.why_not(memory_mib=memory_mib, product=profile.spec.measure.product)
                return [], no("Measured", "NoRoomToProfile", reason)
            break
        actions.append(Apply(manifest))
    return actions, _measuring(missing)


def _failed_before(profile: ModelProfile) -> Fact | None:
    """A failure ends the measuring of this generation: a broken file stays broken, and each try takes a device."""
    condition = find(profile.status.conditions, "Measured")
    if condition is None or condition.reason != "ProfilingFailed":
        return None
    if condition.observed_generation != profile.metadata.generation:
        return None
    return no("Measured", condition.reason, condition.message)


def source_of(world: World, profile: ModelProfile) -> ModelSource | Fact:
    """The model to measure, or why there is none."""
    if profile.spec.model is not None:
        source = profile.spec.model
    else:
        name = profile.spec.model_ref.name if profile.spec.model_ref else ""
        model = world.models.get((profile.metadata.namespace, name))
        if model is None:
            return no("Measured", "ModelNotFound", f"spec.modelRef: no InferenceModel {name} in this namespace")
        source = model.spec.model
    try:
        model_file(source)
    except UnsupportedSourceError as error:
        return no("Measured", "UnsupportedSource", str(error))
    return source


def report_of(pod: dict[str, Any] | None) -> ProfileReport | None:
    """What an ended prober said; an end without a word is an error of its own. None while it runs."""
    if pod is None or deleting(pod) or disrupted(pod):
        return None
    broken = last_words(pod)
    if broken is not None:
        return _error(broken)
    for container in pod.get("status", {}).get("containerStatuses") or ():
        ended = container.get("state", {}).get("terminated")
        if container["name"] != "prober" or ended is None:
            continue
        try:
            return ProfileReport.model_validate(json.loads(ended.get("message") or ""))
        except (ValueError, ValidationError):
            return _error(f"the prober ended with code {ended.get('exitCode')} and no report: see its log")
    return None


def _error(message: str) -> ProfileReport:
    return ProfileReport(model_digest="", runtime="", runtime_version="", points=[], error=message)


def _missing_percents(profile: ModelProfile, points: list[Point]) -> set[int]:
    assert profile.spec.measure is not None
    have = {(p.compute_percent, p.batch) for p in points}
    measure = profile.spec.measure
    return {p for p in measure.compute_percents if any((p, b) not in have for b in measure.batches)}


def _merged(points: list[Point], new: list[Point]) -> list[Point]:
    by_place = {(p.product, p.mig or "", p.compute_percent, p.batch, p.instances): p for p in [*points, *new]}
    return [by_place[place] for place in sorted(by_place)]


def _key(report: ProfileReport) -> ProfileKey:
    product = report.points[0].product if report.points else ""
    return ProfileKey(
        model_digest=report.model_digest,
        product=product,
        runtime=report.runtime,
        runtime_version=report.runtime_version,
    )


def _measuring(missing: set[int]) -> Fact:
    if missing:
        left = ", ".join(f"{p} %" for p in sorted(missing))
        return no("Measured", "Measuring", f"shares still to be measured: {left}")
    return yes("Measured", "Measured", "every share and batch asked for")


def _gpulet(profile: ModelProfile, room: Room, percent: int, policy: Policy) -> dict[str, Any] | None:
    assert profile.spec.measure is not None
    device = room.take(
        namespace=profile.metadata.namespace,
        purpose="profile",
        compute_percent=percent,
        memory_mib=policy.profiling.memory_mebibytes,
        product=profile.spec.measure.product,
    )
    if device is None:
        return None
    owner = {"apiVersion": names.API_VERSION, "kind": "ModelProfile", "metadata": profile.metadata.to_dict()}
    return profiling_gpulet(
        owner,
        share=Share(device, percent, policy.profiling.memory_mebibytes),
        batches=list(profile.spec.measure.batches),
        revision=short_hash([policy.images.serving, profile.metadata.uid]),
    )


def product_of(room: Room, gpulet: Gpulet) -> str:
    """The product a profiling Gpulet runs on."""
    device = share_of(gpulet.spec).device
    return next((g.product for g in room.gpus if g.uuid == device.gpu), "")


def _status(
    profile: ModelProfile, measured: Fact, points: list[Point], key: ProfileKey | None, *, now: datetime
) -> list[Action]:
    ready = ready_from([measured])
    stalled = measured if measured.reason in ("ModelNotFound", "UnsupportedSource", "ProfilingFailed") else None
    generation = profile.metadata.generation
    wanted = (
        0
        if profile.spec.measure is None
        else (len(profile.spec.measure.compute_percents) * len(profile.spec.measure.batches))
    )
    status = ModelProfileStatus(
        observed_generation=generation,
        conditions=conditions(
            profile.status.conditions,
            [measured, ready, *kstatus(ready, stalled=stalled)],
            generation=generation,
            now=now,
        ),
        key=key,
        measured=len(points),
        wanted=wanted,
        points=points,
    )
    actions: list[Action] = [WriteStatus("ModelProfile", profile.key, status.to_dict())]
    if stalled is not None:
        actions.append(Tell(_regarding(profile), stalled.reason, stalled.message, warning=True))
    return actions


def _regarding(profile: ModelProfile) -> dict[str, Any]:
    return {"apiVersion": names.API_VERSION, "kind": "ModelProfile", "metadata": profile.metadata.to_dict()}
