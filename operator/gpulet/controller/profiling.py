"""From a ModelProfile that asks for measurements to its points: one Gpulet a share, where there is room. Pure."""

import json
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from gpulet.api import names
from gpulet.api.gpulet import Gpulet
from gpulet.api.inferencemodel import ModelSource
from gpulet.api.modelprofile import MeasuredSource, ModelProfile, ModelProfileStatus, Point, ProfileKey
from gpulet.api.policy import Policy
from gpulet.api.workload import ProfileReport
from gpulet.build.gpulet import REVISION, Share, profiling_gpulet, share_of
from gpulet.build.names import short_hash
from gpulet.controller.actions import Action, Apply, Delete, Tell, WriteStatus
from gpulet.controller.room import Room
from gpulet.controller.sources import identity, source_of
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
        given = yes("Measured", "Given", f"{len(profile.spec.points)} points given")
        return _status(profile, given, _Surface([], None, None), now=now)
    source = source_of(world, profile)
    if isinstance(source, Fact):
        return _status(profile, source, _told(profile), now=now)
    known = _known(profile, source)
    gpulets = world.gpulets_of(names.LABEL_PROFILE, profile.metadata.namespace, profile.metadata.name)
    failed = _failed_before(profile, known)
    if failed is not None:
        ended: list[Action] = [Delete("Gpulet", g.key, g.metadata.uid, "profiling failed") for g in gpulets]
        return ended + _status(profile, failed, known, now=now)
    revision = _revision(profile, source, policy)
    current = [g for g in gpulets if g.metadata.annotations.get(REVISION) == revision]
    actions: list[Action] = [
        Delete("Gpulet", g.key, g.metadata.uid, "of another file or image") for g in gpulets if g not in current
    ]
    known, error = _gathered(world, known, current)
    if error is not None:
        remedy = f"{error}; mend it, then delete this ModelProfile to measure again"
        return actions + _status(profile, no("Measured", "ProfilingFailed", remedy), known, now=now)
    missing = _missing_percents(profile, known.points)
    # The points are written first: should we die here, the pod's message is still there to be read again.
    if known.points != profile.status.points:
        return actions + _status(profile, _measuring(missing), known, now=now)
    actions += [
        Delete("Gpulet", g.key, g.metadata.uid, "measured") for g in current if g.spec.compute_percent not in missing
    ]
    started, fact = _start_missing(profile, known, missing, current, room, policy, revision=revision)
    if refused is not None and not fact.true:
        fact = no("Measured", "Refused", refused)
    return actions + started + _status(profile, fact, known, now=now)


@dataclass(frozen=True)
class _Surface:
    """What is known of one file."""

    points: list[Point]
    key: ProfileKey | None
    source: MeasuredSource | None


def _told(profile: ModelProfile) -> _Surface:
    return _Surface(profile.status.points, profile.status.key, profile.status.source)


def _known(profile: ModelProfile, source: ModelSource) -> _Surface:
    """What the status has of this file on the product asked for: points of another would be a lie."""
    file = identity(source)
    if profile.status.source not in (None, file):
        return _Surface([], None, file)
    product = profile.spec.measure.product if profile.spec.measure is not None else None
    points = [p for p in profile.status.points if product in (None, p.product)]
    return _Surface(points, profile.status.key, file)


def _gathered(world: World, known: _Surface, gpulets: list[Gpulet]) -> tuple[_Surface, str | None]:
    """With the points that ended probers report; and the first error one reports."""
    for gpulet in gpulets:
        report = report_of(world.pods.get(gpulet.key))
        if report is None:
            continue
        if report.error:
            return known, report.error
        known = replace(known, points=_merged(known.points, report.points), key=_key(report))
    return known, None


def _start_missing(
    profile: ModelProfile,
    known: _Surface,
    missing: set[int],
    current: list[Gpulet],
    room: Room,
    policy: Policy,
    *,
    revision: str,
) -> tuple[list[Action], Fact]:
    """Gpulets for the shares that are neither measured nor running, largest first, while there is room."""
    actions: list[Action] = []
    product = _product(profile, known, current, room)
    for percent in sorted(missing - {g.spec.compute_percent for g in current}, reverse=True):
        manifest = _gpulet(profile, room, percent, policy, product=product, revision=revision)
        if manifest is None:
            if not current and not actions:
                reason = room.why_not(memory_mib=policy.profiling.memory_mebibytes, product=product)
                return [], no("Measured", "NoRoomToProfile", reason)
            break
        actions.append(Apply(manifest))
        product = _product_at(room, manifest["spec"]["device"]["gpu"])
    return actions, _measuring(missing)


def _product(profile: ModelProfile, known: _Surface, current: list[Gpulet], room: Room) -> str | None:
    """One surface is of one product: the one asked for, or where measuring has begun; None: any will do."""
    asked = profile.spec.measure.product if profile.spec.measure is not None else None
    begun = [p.product for p in known.points[:1]] + [product_of(room, gpulet) for gpulet in current[:1]]
    return asked or next(iter(begun), None) or None


def _revision(profile: ModelProfile, source: ModelSource, policy: Policy) -> str:
    """What a prober's pod is built from: a change of it is a new Gpulet."""
    return short_hash([policy.images.serving, profile.metadata.uid, source.to_dict()])


def _failed_before(profile: ModelProfile, known: _Surface) -> Fact | None:
    """A failure ends the measuring of this file: a broken one stays broken, and each try takes a device."""
    condition = find(profile.status.conditions, "Measured")
    if condition is None or condition.reason != "ProfilingFailed" or profile.status.source not in (None, known.source):
        return None
    if condition.observed_generation != profile.metadata.generation:
        return None
    return no("Measured", condition.reason, condition.message)


def report_of(pod: dict[str, Any] | None) -> ProfileReport | None:
    """What an ended prober said; an end without a word is an error of its own. None while it runs."""
    if pod is None or deleting(pod) or disrupted(pod):
        return None
    broken = last_words(pod)
    if broken is not None:
        return _error(broken.error or "")
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


def _gpulet(
    profile: ModelProfile, room: Room, percent: int, policy: Policy, *, product: str | None, revision: str
) -> dict[str, Any] | None:
    assert profile.spec.measure is not None
    device = room.take(
        namespace=profile.metadata.namespace,
        purpose="profile",
        compute_percent=percent,
        memory_mib=policy.profiling.memory_mebibytes,
        product=product,
    )
    if device is None:
        return None
    owner = {"apiVersion": names.API_VERSION, "kind": "ModelProfile", "metadata": profile.metadata.to_dict()}
    return profiling_gpulet(
        owner,
        share=Share(device, percent, policy.profiling.memory_mebibytes),
        batches=list(profile.spec.measure.batches),
        revision=revision,
    )


def product_of(room: Room, gpulet: Gpulet) -> str:
    """The product a profiling Gpulet runs on."""
    return _product_at(room, share_of(gpulet.spec).device.gpu)


def _product_at(room: Room, uuid: str) -> str:
    return next((gpu.product for gpu in room.gpus if gpu.uuid == uuid), "")


def _status(profile: ModelProfile, measured: Fact, known: _Surface, *, now: datetime) -> list[Action]:
    ready = ready_from([measured])
    stalled = measured if measured.reason in ("ModelNotFound", "UnsupportedSource", "ProfilingFailed") else None
    generation = profile.metadata.generation
    measure = profile.spec.measure
    status = ModelProfileStatus(
        observed_generation=generation,
        conditions=conditions(
            profile.status.conditions,
            [measured, ready, *kstatus(ready, stalled=stalled)],
            generation=generation,
            now=now,
        ),
        key=known.key,
        source=known.source,
        measured=len(known.points) if measure is not None else None,
        wanted=len(measure.compute_percents) * len(measure.batches) if measure is not None else None,
        points=known.points,
    )
    actions: list[Action] = [WriteStatus("ModelProfile", profile.key, status.to_dict())]
    if stalled is not None:
        actions.append(Tell(_regarding(profile), stalled.reason, stalled.message, warning=True))
    return actions


def _regarding(profile: ModelProfile) -> dict[str, Any]:
    return {"apiVersion": names.API_VERSION, "kind": "ModelProfile", "metadata": profile.metadata.to_dict()}
