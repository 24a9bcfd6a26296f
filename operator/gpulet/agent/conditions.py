"""What the node says of a share, in ResourceClaim.status.devices: the only word that leaves the node."""

from datetime import datetime
from typing import Any

from gpulet.api import names
from gpulet.api.base import Condition
from gpulet.kube.kinds import RESOURCE_CLAIM
from gpulet.status.conditions import Fact, conditions


def device_key(*, pool: str, device: str, share_id: str | None) -> dict[str, str]:
    """The fields by which the API server tells the devices of a claim's status apart."""
    key = {"driver": names.DRIVER, "pool": pool, "device": device}
    return key if share_id is None else key | {"shareID": share_id}


def status_manifest(claim: dict[str, Any], key: dict[str, str], found: list[Fact], *, now: datetime) -> Any:
    """To be applied to the claim's status; None if the claim says all of it already."""
    previous = _previous(claim, key)
    generation = claim["metadata"].get("generation", 0)
    wanted = [c.to_dict() for c in conditions(previous, found, generation=generation, now=now)]
    if wanted == [c.to_dict() for c in previous]:
        return None
    metadata = {field: claim["metadata"][field] for field in ("name", "namespace", "uid")}
    return {
        "apiVersion": RESOURCE_CLAIM.api_version,
        "kind": RESOURCE_CLAIM.kind,
        "metadata": metadata,
        "status": {"devices": [key | {"conditions": wanted}]},
    }


def _previous(claim: dict[str, Any], key: dict[str, str]) -> list[Condition]:
    for device in claim.get("status", {}).get("devices") or ():
        if {field: device[field] for field in ("driver", "pool", "device", "shareID") if device.get(field)} == key:
            return [Condition.model_validate(c) for c in device.get("conditions") or ()]
    return []
