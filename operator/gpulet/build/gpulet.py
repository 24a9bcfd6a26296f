"""Gpulets: the plan made visible."""

from dataclasses import dataclass
from typing import Any

from gpulet.api import names
from gpulet.api.base import memory_mib, memory_quantity
from gpulet.api.gpulet import Gpulet, GpuletSpec
from gpulet.build.names import gpulet_name
from gpulet.model.demand import ModelId
from gpulet.model.device import Device
from gpulet.model.plan import Slot

REVISION = f"{names.GROUP}/revision"
"""Annotation: a hash of what the pod is built from beyond the Gpulet's own spec (model source, template, image)."""
ORDINAL = f"{names.GROUP}/ordinal"
"""Annotation: tells equal replicas on one device apart."""


@dataclass(frozen=True)
class Share:
    """A part of a device that something runs in."""

    device: Device
    compute_percent: int
    memory_mib: int
    clients: int = 1


def owner_reference(owner: dict[str, Any], *, controller: bool) -> dict[str, Any]:
    """``owner``: an object with apiVersion, kind and metadata. Only one owner of an object may be its controller."""
    reference: dict[str, Any] = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
    }
    if controller:
        reference |= {"controller": True, "blockOwnerDeletion": True}
    return reference


def serving_gpulet(slot: Slot, *, owner: dict[str, Any], revision: str) -> dict[str, Any]:
    """The Gpulet of one planned replica. The model is its plain owner (a Gpulet may serve several)."""
    served: dict[str, Any] = {
        "name": slot.model.name,
        "batch": slot.batch,
        "instances": slot.instances,
        "queueDelayMicroseconds": slot.queue_delay_us,
    }
    if slot.artifact is not None:
        served["artifact"] = slot.artifact
    return _gpulet(
        owner,
        share=Share(slot.device, slot.compute_percent, slot.memory_mib, slot.clients),
        workload={"models": [served]},
        ordinal=slot.ordinal,
        labels={names.LABEL_MODEL: slot.model.name, names.LABEL_ROLE: "serve"},
        revision=revision,
    )


def tuning_gpulet(job: dict[str, Any], *, share: Share, role: str, ordinal: int, revision: str) -> dict[str, Any]:
    """A share in which candidates of a TuningJob are measured (role server) or its result is (role merge)."""
    name = job["metadata"]["name"]
    return _gpulet(
        job,
        share=share,
        workload={"tuning": {"job": name, "role": role, "ordinal": ordinal}},
        ordinal=ordinal,
        labels={names.LABEL_JOB: name, names.LABEL_ROLE: role},
        revision=revision,
    )


def profiling_gpulet(profile: dict[str, Any], *, share: Share, batches: list[int], revision: str) -> dict[str, Any]:
    """A share in which a model is measured."""
    name = profile["metadata"]["name"]
    return _gpulet(
        profile,
        share=share,
        workload={"profiling": {"profile": name, "batches": batches}},
        ordinal=0,
        labels={names.LABEL_PROFILE: name, names.LABEL_ROLE: "profile"},
        revision=revision,
    )


def _gpulet(
    owner: dict[str, Any],
    *,
    share: Share,
    workload: dict[str, Any],
    ordinal: int,
    labels: dict[str, str],
    revision: str,
) -> dict[str, Any]:
    namespace = owner["metadata"]["namespace"]
    device: dict[str, Any] = {"node": share.device.node, "gpu": share.device.gpu}
    if share.device.profile is not None:
        device["mig"] = {"profile": share.device.profile, "start": share.device.start}
    name = gpulet_name(
        owner=owner["metadata"]["name"],
        namespace=namespace,
        device=share.device,
        compute_percent=share.compute_percent,
        memory_mib=share.memory_mib,
        clients=share.clients,
        workload=workload | {"revision": revision},
        ordinal=ordinal,
    )
    return {
        "apiVersion": names.API_VERSION,
        "kind": "Gpulet",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {names.LABEL_ORIGIN: names.ORIGIN_PLAN, names.LABEL_MANAGED_BY: names.MANAGED_BY} | labels,
            "annotations": {REVISION: revision, ORDINAL: str(ordinal)},
            "ownerReferences": [owner_reference(owner, controller=False)],
        },
        "spec": {
            "device": device,
            "computePercent": share.compute_percent,
            "memory": memory_quantity(share.memory_mib),
            "clients": share.clients,
        }
        | workload,
    }


def device_of(spec: GpuletSpec) -> Device:
    """The device a Gpulet's spec names."""
    mig = spec.device.mig
    return Device(spec.device.node, spec.device.gpu, mig.profile if mig else None, mig.start if mig else None)


def share_of(spec: GpuletSpec) -> Share:
    """The share a Gpulet's spec names."""
    return Share(device_of(spec), spec.compute_percent, memory_mib(spec.memory), spec.clients)


def slot_of(gpulet: Gpulet) -> Slot | None:
    """The planner's view of an existing serving Gpulet; None if it serves no model or several."""
    if gpulet.spec.models is None or len(gpulet.spec.models) != 1:
        return None
    served, share = gpulet.spec.models[0], share_of(gpulet.spec)
    return Slot(
        model=ModelId(gpulet.metadata.namespace, served.name),
        device=share.device,
        compute_percent=share.compute_percent,
        memory_mib=share.memory_mib,
        clients=share.clients,
        batch=served.batch,
        instances=served.instances,
        queue_delay_us=served.queue_delay_microseconds,
        artifact=served.artifact,
        ordinal=int(gpulet.metadata.annotations.get(ORDINAL, "0")),
    )
