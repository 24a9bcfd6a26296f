"""The last line of defence: what the scheduler should never have allocated is refused here. Pure."""

from collections.abc import Iterable

from gpulet.agent.claims import ClaimRecord
from gpulet.agent.devices import NodeDevice
from gpulet.model.sharing import Tenant, conflict


def refusal(new: ClaimRecord, device: NodeDevice, others: Iterable[tuple[ClaimRecord, NodeDevice]]) -> str | None:
    """Why ``new`` cannot be prepared on ``device`` beside the ``others`` of this node; None: it can.

    Others on the same GPU must not overlap it; others on the same device (one MPS daemon: one fault domain) must fit
    beside it, and the isolation of each must allow the other.
    """
    same = []
    for other, place in others:
        if other.uid == new.uid:
            continue
        if new.same_device(other):
            same.append(other)
        elif device.overlaps(place):
            return f"device {new.device} overlaps {other.device}, which {_who(other)} holds"
    return _sums(new, device, same) or next((r for r in (_neighbour(new, o) for o in same) if r), None)


def out_of_range(new: ClaimRecord, device: NodeDevice) -> str | None:
    """Why ``new`` can never be prepared on ``device``, whoever else is there; None: it can."""
    limits = {
        "computePercent": (new.compute_percent, 100),
        "memory (MiB)": (new.memory_mib, device.memory_mib),
        "clients": (new.clients, device.clients),
    }
    for name, (value, most) in limits.items():
        if not 1 <= value <= most:
            return f"{name} is {value}; {device.name} takes 1 to {most}"
    if new.clients > new.compute_percent:
        return f"clients is {new.clients}, but computePercent {new.compute_percent} leaves each less than 1 percent"
    return None


def _sums(new: ClaimRecord, device: NodeDevice, same: list[ClaimRecord]) -> str | None:
    sums = {
        "computePercent": (new.compute_percent + sum(o.compute_percent for o in same), 100),
        "memory (MiB)": (new.memory_mib + sum(o.memory_mib for o in same), device.memory_mib),
        "clients": (new.clients + sum(o.clients for o in same), device.clients),
    }
    for name, (total, most) in sums.items():
        if total > most:
            holders = ", ".join(sorted(_who(o) for o in same))
            return f"{name} on {device.name} would add up to {total} of {most} with {holders}"
    return None


def _neighbour(new: ClaimRecord, other: ClaimRecord) -> str | None:
    match conflict(_tenant(new), _tenant(other)):
        case "None":
            return f"isolation None allows no neighbour, but {_who(other)} is on {new.device} too"
        case "Namespace":
            return f"isolation Namespace: {_who(other)} of another namespace is on {new.device} too"
        case "Tuning":
            return f"a faulting candidate kernel would end {_who(other)}: tune and serve do not share {new.device}"
    return None


def _tenant(record: ClaimRecord) -> Tenant:
    return Tenant(record.namespace, record.isolation, record.purpose)


def _who(record: ClaimRecord) -> str:
    return f"ResourceClaim {record.namespace}/{record.name}"
