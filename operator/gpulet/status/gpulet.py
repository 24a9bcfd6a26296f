"""Status of a Gpulet from its claim and its pod."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gpulet.api import names
from gpulet.api.gpulet import DeviceRef, Gpulet, GpuletStatus
from gpulet.status.conditions import Fact, conditions, kstatus, no, unknown, yes
from gpulet.status.figures import rounded

_SHORT_UUID = len("GPU-8b1fbde3")


@dataclass(frozen=True)
class Observed:
    """What was seen of a Gpulet's children: dicts as the API server has them, or None if absent."""

    claim: Mapping[str, Any] | None
    pod: Mapping[str, Any] | None
    planned_rate: float | None = None
    predicted_latency_ms: float | None = None
    observed_latency_ms: float | None = None


def pod_ready(pod: Mapping[str, Any] | None) -> bool:
    """Whether the kubelet calls the pod ready, and nobody is deleting it."""
    if pod is None or pod["metadata"].get("deletionTimestamp"):
        return False
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod.get("status", {}).get("conditions") or ())


def scheduling_refusal(pod: Mapping[str, Any] | None) -> str | None:
    """The scheduler's own message if it cannot place the pod."""
    if pod is None:
        return None
    for condition in pod.get("status", {}).get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("message") or condition.get("reason") or "not scheduled")
    return None


def enforced(claim: Mapping[str, Any] | None) -> Fact:
    """What the agent says of the limit; Unknown until it has said something."""
    for device in (claim or {}).get("status", {}).get("devices") or ():
        if device.get("driver") != names.DRIVER:
            continue
        for condition in device.get("conditions") or ():
            if condition["type"] == "Enforced":
                return Fact("Enforced", condition["status"], condition["reason"], condition.get("message", ""))
    return unknown("Enforced", "NotVerified", "the node agent has not reported yet")


def node_refusal(claim: Mapping[str, Any] | None) -> str | None:
    """Why the node does not make the share, in the agent's own words; None: it said no such thing."""
    for device in (claim or {}).get("status", {}).get("devices") or ():
        if device.get("driver") != names.DRIVER:
            continue
        for condition in device.get("conditions") or ():
            if (condition["type"], condition["status"], condition["reason"]) == ("Ready", "False", "PrepareRefused"):
                return str(condition.get("message") or "prepare refused")
    return None


def ready(observed: Observed) -> Fact:
    """Ready: the pod serves (or works); else the first obstacle, in the order in which things happen."""
    if observed.pod is None:
        return no("Ready", "NoPod", "its pod does not exist yet")
    if pod_ready(observed.pod):
        return yes("Ready", "PodReady")
    if message := scheduling_refusal(observed.pod):
        return no("Ready", "Unschedulable", message)
    phase = observed.pod.get("status", {}).get("phase", "Pending")
    if phase in ("Succeeded", "Failed"):
        return no("Ready", f"Pod{phase}")
    if message := node_refusal(observed.claim):
        return no("Ready", "PrepareRefused", message)
    return no("Ready", "Starting", waiting_reason(observed.pod))


def waiting_reason(pod: Mapping[str, Any]) -> str:
    """What the kubelet says a container waits for, or died of."""
    status = pod.get("status", {})
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        state = container.get("state", {})
        if waiting := state.get("waiting"):
            return f"container {container['name']}: {waiting.get('reason', 'waiting')}"
        if ended := state.get("terminated"):
            return f"container {container['name']} ended with code {ended.get('exitCode')}"
    return ""


def gpulet_status(gpulet: Gpulet, observed: Observed, *, now: datetime) -> GpuletStatus:
    """The whole status of a Gpulet."""
    is_ready = ready(observed)
    facts = [is_ready, enforced(observed.claim), *kstatus(is_ready, stalled=None)]
    return GpuletStatus(
        observed_generation=gpulet.metadata.generation,
        conditions=conditions(gpulet.status.conditions, facts, generation=gpulet.metadata.generation, now=now),
        device=short_device(gpulet.spec.device),
        pod=gpulet.metadata.name if observed.pod is not None else None,
        planned_rate=rounded(observed.planned_rate),
        predicted_latency_milliseconds=rounded(observed.predicted_latency_ms),
        observed_latency_milliseconds=rounded(observed.observed_latency_ms),
    )


def short_device(device: DeviceRef) -> str:
    """What a table has room for: GPU-8b1fbde3, or with a MIG placement GPU-8b1fbde3/3g.40gb@4."""
    gpu = device.gpu[:_SHORT_UUID]
    return gpu if device.mig is None else f"{gpu}/{device.mig.profile}@{device.mig.start}"


def disrupted(pod: Mapping[str, Any]) -> bool:
    """Whether the pod failed by the cluster's doing (evicted, admission race, node shut down), not by its own.

    The kubelet gives such pods a reason of their own; a program that ended leaves it empty (failure case F7).
    """
    status = pod.get("status", {})
    return status.get("phase") == "Failed" and bool(status.get("reason"))
