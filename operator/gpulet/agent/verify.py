"""Whether a share is true and enforced, from what was seen on the node. Pure.

``Ready``: the daemon's settings were read back. ``Enforced`` is honest: True only once the share's own processes are
in the daemon's list with the limits of the plan (failure cases B11, D15, A29).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gpulet.agent.claims import ClaimRecord
from gpulet.nvidia.mps import SourceName
from gpulet.status.conditions import Fact, no, unknown, yes

READY, ENFORCED = "Ready", "Enforced"


@dataclass(frozen=True)
class ClientSeen:
    """A process in the MPS daemon's list."""

    pid: int
    pod_uid: str | None
    """None: it is in no pod."""
    environment: dict[str, str] | None
    """As the process was started; None if it could not be read."""


@dataclass(frozen=True)
class PodUse:
    """A pod that uses a claim."""

    uid: str
    cpu_limits: tuple[int | None, ...]
    """Millicores of each container that names the claim; None: it has no limit."""


def pod_uses(pods: Iterable[dict[str, Any]]) -> dict[tuple[str, str], list[PodUse]]:
    """Pods by (namespace, name) of the claims they use."""
    uses: dict[tuple[str, str], list[PodUse]] = {}
    for pod in pods:
        made = {s["name"]: s.get("resourceClaimName") for s in pod.get("status", {}).get("resourceClaimStatuses") or ()}
        for reference in pod["spec"].get("resourceClaims") or ():
            name = reference.get("resourceClaimName") or made.get(reference["name"])
            if name:
                use = PodUse(pod["metadata"]["uid"], _cpu_limits(pod["spec"], reference["name"]))
                uses.setdefault((pod["metadata"]["namespace"], name), []).append(use)
    return uses


def _cpu_limits(spec: dict[str, Any], claim: str) -> tuple[int | None, ...]:
    containers = [*(spec.get("initContainers") or ()), *spec["containers"]]
    limits = []
    for container in containers:
        resources = container.get("resources") or {}
        if any(c["name"] == claim for c in resources.get("claims") or ()):
            limits.append(_millicores((resources.get("limits") or {}).get("cpu")))
    return tuple(limits)


def _millicores(quantity: str | None) -> int | None:
    if quantity is None:
        return None
    text = str(quantity)
    return int(text[:-1]) if text.endswith("m") else round(float(text) * 1000)


def facts(
    record: ClaimRecord,
    *,
    source: SourceName,
    settled: bool,
    clients: Iterable[ClientSeen],
    uses: Iterable[PodUse],
    millicores: int,
    environment: dict[str, str],
) -> list[Fact]:
    """The claim's conditions. ``clients``: of its device's daemon, its own and others'; ``millicores``: CPU that
    stands for the whole device when simulated; ``environment``: what its containers were given."""
    uses = list(uses)
    pods = {use.uid for use in uses}
    own = [client for client in clients if client.pod_uid in pods]
    if not settled:
        message = "the device's MPS daemon is being started again and has not read its settings back yet"
        return [no(READY, "DaemonRestarted", message), unknown(ENFORCED, "NotVerified", message)]
    ready = yes(READY, "Prepared", "daemon settings read back")
    limits = [limit for use in uses for limit in use.cpu_limits]
    allowed = -(-record.compute_percent * millicores // 100)
    return [ready, _tampered(record, own, environment) or _how(record, source, limits, allowed)]


def _tampered(record: ClaimRecord, own: list[ClientSeen], environment: dict[str, str]) -> Fact | None:
    """What speaks against the share being held; None: nothing."""
    if not own:
        return unknown(ENFORCED, "NotVerified", "no process of it is in the MPS daemon's list yet")
    if len(own) > record.clients:
        return no(
            ENFORCED, "Tampered", f"{len(own)} client processes, {record.clients} claimed: limits are per process"
        )
    for client in own:
        if client.environment is None:
            return unknown(ENFORCED, "NotVerified", "a client's environment cannot be read")
        for name, value in environment.items():
            if name.startswith("CUDA_MPS_") and client.environment.get(name) != value:
                return no(
                    ENFORCED, "Tampered", f"a client runs with {name}={client.environment.get(name)}, not {value}"
                )
    return None


def _how(record: ClaimRecord, source: SourceName, limits: list[int | None], allowed: int) -> Fact:
    if source == "simulated":
        if any(limit is None or limit > allowed for limit in limits) or not limits:
            said = ", ".join("none" if limit is None else f"{limit}m" for limit in limits) or "none"
            return no(ENFORCED, "AccountingOnly", f"the container's CPU limit is {said}; the share's is {allowed}m")
        return yes(ENFORCED, "CPUQuota", f"client listed; CPU limit {max(filter(None, limits))}m of {allowed}m")
    if record.profile is not None and record.compute_percent == 100:
        return yes(ENFORCED, "MIG", "the whole MIG instance; client listed")
    return yes(ENFORCED, "MPSEnvironment", "daemon read back, client listed, limits seen in its environment")
