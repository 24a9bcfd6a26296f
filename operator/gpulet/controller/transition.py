"""From the shares that exist to those that are planned, least disruptive first. Pure.

Make before break: what is planned is created beside what exists, and what is obsolete goes only when its model's
planned replicas all serve. Only where the new cannot stand beside the old does the old go first.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpulet.api.base import memory_mib
from gpulet.api.gpulet import Gpulet
from gpulet.build.gpulet import Share, share_of
from gpulet.controller.world import Key, is_planned
from gpulet.model.demand import ModelId
from gpulet.model.device import Device, Gpu
from gpulet.model.sharing import Tenant, conflict

_Taken = dict[Device, list[tuple[Share, Tenant]]]
# Endpoints reach every node's proxy within this time after a pod has left its Service.
DRAIN_S = 5.0


@dataclass(frozen=True)
class Removal:
    key: Key
    reason: str


@dataclass(frozen=True)
class Steps:
    """What to do in this pass."""

    create: tuple[dict[str, Any], ...] = ()
    unroute: tuple[Key, ...] = ()
    remove: tuple[Removal, ...] = ()
    reroute: tuple[Key, ...] = ()
    """Obsolete ones that must take traffic again: their replacement stopped serving before they were gone."""
    waiting: Mapping[ModelId, str] = field(default_factory=dict)
    """Models whose planned shares wait for room, and for what."""

    @property
    def empty(self) -> bool:
        return not (self.create or self.unroute or self.remove or self.reroute)


@dataclass(frozen=True)
class Scene:
    """What the decision depends on."""

    gpus: tuple[Gpu, ...]
    existing: Mapping[Key, Gpulet]
    """Gpulets that are not being deleted, of every origin and workload."""
    desired: Mapping[Key, dict[str, Any]]
    """Manifests of planned serving Gpulets."""
    ready: frozenset[Key]
    unrouted_for_s: Mapping[Key, float]
    """Gpulets whose pod has left the Service, and since when."""
    planned_models: frozenset[ModelId]
    serving: frozenset[Key]
    """Existing serving Gpulets of our plan: those that may become obsolete."""
    tenants: Mapping[Key, Tenant] = field(default_factory=dict)
    """What existing and desired Gpulets are to their neighbours; absent: of their namespace, serving."""

    def tenant(self, key: Key) -> Tenant:
        return self.tenants.get(key, Tenant(key[0]))


def steps(scene: Scene) -> Steps:
    """The steps of this pass; carrying them out and asking again leads to ``desired`` alone."""
    obsolete = scene.serving - scene.desired.keys()
    create, blocked = _split_by_room(scene)
    settled = _settled_models(scene)
    unroute, remove, reroute = [], [], []
    for key in sorted(obsolete):
        if _model_of(scene.existing[key]) not in settled:
            if key in scene.unrouted_for_s and key in scene.ready:
                reroute.append(key)
            continue
        if key not in scene.unrouted_for_s:
            unroute.append(key)
        elif scene.unrouted_for_s[key] >= DRAIN_S:
            remove.append(Removal(key, "Replaced"))
    waiting = {}
    for manifest in blocked:
        model = _model_of_manifest(manifest)
        makers_of_room = _in_the_way(scene, manifest, obsolete, settled)
        remove += [r for r in makers_of_room if r.key not in {x.key for x in remove}]
        waiting[model] = f"waits for room on {_device_of_manifest(manifest).gpu}"
    return Steps(tuple(create), tuple(unroute), tuple(remove), tuple(reroute), waiting)


def _settled_models(scene: Scene) -> frozenset[ModelId]:
    """Planned models all of whose planned replicas serve."""
    lacking = {_model_of_manifest(m) for key, m in scene.desired.items() if key not in scene.ready}
    return scene.planned_models - lacking


def _split_by_room(scene: Scene) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(those that fit beside all that exists, those that do not), taken in order of name."""
    taken: _Taken = defaultdict(list)
    for key, gpulet in scene.existing.items():
        share = share_of(gpulet.spec)
        taken[share.device].append((share, scene.tenant(key)))
    create, blocked = [], []
    for key in sorted(scene.desired.keys() - scene.existing.keys()):
        share, tenant = _share_of_manifest(scene.desired[key]), scene.tenant(key)
        if _fits(scene.gpus, taken, share, tenant):
            taken[share.device].append((share, tenant))
            create.append(scene.desired[key])
        else:
            blocked.append(scene.desired[key])
    return create, blocked


def _in_the_way(
    scene: Scene, manifest: dict[str, Any], obsolete: Iterable[Key], settled: frozenset[ModelId]
) -> list[Removal]:
    """What has to go first so that ``manifest`` fits. Tuning and profiling yield at once; obsolete replicas only
    if their own replacements cannot come up before them."""
    share = _share_of_manifest(manifest)
    sizes = _sizes(scene.gpus)
    found = []
    for key, gpulet in sorted(scene.existing.items()):
        device = share_of(gpulet.spec).device
        if device != share.device and not device.overlaps(share.device, sizes):
            continue
        if gpulet.spec.models is None:
            if is_planned(gpulet):
                found.append(Removal(key, "YieldedToServing"))
        elif key in obsolete:
            model = _model_of(gpulet)
            if model in settled:
                continue  # goes the gentle way, in a moment
            if model not in scene.planned_models or not _coming_up(scene, model):
                found.append(Removal(key, "BreakBeforeMake"))
    return found


def _coming_up(scene: Scene, model: ModelId) -> bool:
    """Whether all planned replicas of the model exist, so that waiting will settle it."""
    return all(key in scene.existing for key, m in scene.desired.items() if _model_of_manifest(m) == model)


def _fits(gpus: tuple[Gpu, ...], taken: _Taken, share: Share, tenant: Tenant) -> bool:
    """Whether the node would prepare the share beside those that are there: the agent asks the same."""
    gpu = next((g for g in gpus if g.uuid == share.device.gpu and g.node == share.device.node), None)
    if gpu is None:
        return False
    sizes = _sizes(gpus)
    if any(other != share.device and shares and other.overlaps(share.device, sizes) for other, shares in taken.items()):
        return False
    memory, clients = _limits(gpu, share.device)
    there = taken.get(share.device, [])
    beside = [other for other, _ in there]
    return (
        not any(conflict(tenant, neighbour) for _, neighbour in there)
        and sum(s.compute_percent for s in beside) + share.compute_percent <= 100
        and sum(s.memory_mib for s in beside) + share.memory_mib <= memory
        and sum(s.clients for s in beside) + share.clients <= clients
    )


def _limits(gpu: Gpu, device: Device) -> tuple[int, int]:
    if device.profile is None:
        return (gpu.memory_mib, gpu.clients) if gpu.whole else (0, 0)
    for placement in gpu.placements:
        if (placement.profile, placement.start) == (device.profile, device.start):
            return placement.memory_mib, placement.clients
    return 0, 0


def _sizes(gpus: tuple[Gpu, ...]) -> dict[str, int]:
    return {p.profile: p.size for gpu in gpus for p in gpu.placements}


def _model_of(gpulet: Gpulet) -> ModelId:
    return ModelId(gpulet.metadata.namespace, (gpulet.spec.models or [])[0].name)


def _model_of_manifest(manifest: Mapping[str, Any]) -> ModelId:
    return ModelId(manifest["metadata"]["namespace"], manifest["spec"]["models"][0]["name"])


def _device_of_manifest(manifest: Mapping[str, Any]) -> Device:
    device = manifest["spec"]["device"]
    mig = device.get("mig") or {}
    return Device(device["node"], device["gpu"], mig.get("profile"), mig.get("start"))


def _share_of_manifest(manifest: Mapping[str, Any]) -> Share:
    spec = manifest["spec"]
    return Share(_device_of_manifest(manifest), spec["computePercent"], memory_mib(spec["memory"]), spec["clients"])
