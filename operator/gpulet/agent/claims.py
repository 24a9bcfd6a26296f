"""A claim as the agent remembers it, and what an allocated ResourceClaim says. Pure, but for the store of files."""

import contextlib
import json
import logging
import re
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from gpulet.agent.config import faults
from gpulet.agent.devices import NodeDevice
from gpulet.agent.files import remove, write_atomically
from gpulet.api import names
from gpulet.api.workload import ShareConfig

log = logging.getLogger("gpulet.claims")

Step = Literal["intended", "device", "ready"]

_QUANTITY = re.compile(r"^([0-9]+)(Ki|Mi|Gi|Ti)?$")
_BROKEN = ".json.broken"
_KIB = {"Ki": 1, "Mi": 1024, "Gi": 1024**2, "Ti": 1024**3}


class ClaimRefusedError(ValueError):
    """The claim cannot be prepared here; the message names claim, field and remedy."""


@dataclass(frozen=True)
class ClaimRecord:
    """One share of one device, for one claim: the agent's only memory of it, on disk before the first effect."""

    uid: str
    namespace: str
    name: str
    boot_id: str
    request: str
    pool: str
    device: str
    share_id: str | None
    gpu: str
    profile: str | None
    start: int | None
    compute_percent: int
    memory_mib: int
    clients: int
    isolation: Literal["Any", "Namespace", "None"]
    purpose: Literal["serve", "tune", "profile"]
    step: Step = "intended"
    mps_uuid: str | None = None
    """What the MPS daemon serves: the GPU's UUID, or the MIG instance's once it exists."""

    @property
    def cdi_name(self) -> str:
        return f"{self.uid}-{self.request}"

    @property
    def percent_per_client(self) -> int:
        """MPS limits hold per client process (v2), so a share's clients divide it; 0 would mean no limit."""
        return max(1, self.compute_percent // self.clients)

    @property
    def memory_mib_per_client(self) -> int:
        return max(1, self.memory_mib // self.clients)

    def same_device(self, other: "ClaimRecord") -> bool:
        return (self.gpu, self.profile, self.start) == (other.gpu, other.profile, other.start)

    def same_share(self, other: "ClaimRecord") -> bool:
        """Whether both ask for the same of the same device, however far they got."""
        return self.at("intended", "-") == other.at("intended", "-")

    def at(self, step: Step, mps_uuid: str | None = None) -> "ClaimRecord":
        return replace(self, step=step, mps_uuid=mps_uuid or self.mps_uuid)


def quantity_mib(quantity: str) -> int:
    """Whole MiB of a Kubernetes quantity in bytes or binary units; raises ValueError for ``1.5G`` and the like."""
    found = _QUANTITY.match(quantity)
    if found is None:
        raise ValueError(f"memory {quantity!r}: not a whole number of bytes, Ki, Mi, Gi or Ti")
    number = int(found[1])
    bytes_ = number * 1024 * _KIB[found[2]] if found[2] else number
    mib, rest = divmod(bytes_, 1024**2)
    if rest or mib < 1:
        raise ValueError(f"memory {quantity!r}: not a whole number of MiB, at least one")
    return mib


def record_of(claim: dict[str, Any], uid: str, boot_id: str, devices: dict[tuple[str, str], NodeDevice]) -> ClaimRecord:
    """What an allocated claim asks of this node; ``devices`` by (pool, name). Raises ClaimRefusedError."""
    try:
        return _record_of(claim, uid, boot_id, devices)
    except (KeyError, TypeError, AttributeError) as error:
        raise ClaimRefusedError(
            f"ResourceClaim of uid {uid} is malformed ({type(error).__name__}: {error}); delete it and its pod"
        ) from error


def _record_of(
    claim: dict[str, Any], uid: str, boot_id: str, devices: dict[tuple[str, str], NodeDevice]
) -> ClaimRecord:
    metadata = claim["metadata"]
    who = f"ResourceClaim {metadata['namespace']}/{metadata['name']}"
    if metadata["uid"] != uid:
        raise ClaimRefusedError(f"{who}: has uid {metadata['uid']}, the kubelet asks for {uid}: it was re-created")
    allocation = ((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}
    results = [r for r in allocation.get("results") or () if r["driver"] == names.DRIVER]
    if not results:
        raise ClaimRefusedError(f"{who}: status.allocation holds no device of {names.DRIVER}")
    if len(results) > 1:
        # A process reaches one MPS daemon only (failure case A21).
        raise ClaimRefusedError(f"{who}: asks for {len(results)} shares; ask for one share in a claim")
    result = results[0]
    device = devices.get((result["pool"], result["device"]))
    if device is None:
        raise ClaimRefusedError(f"{who}: device {result['device']} of pool {result['pool']} is not on this node now")
    config = _config(who, allocation, result["request"])
    placement = device.placement
    try:
        percent, memory, clients = _consumed(result.get("consumedCapacity") or {})
    except (KeyError, ValueError) as error:
        raise ClaimRefusedError(f"{who}: status.allocation consumedCapacity: {error}") from error
    return ClaimRecord(
        uid=uid,
        namespace=metadata["namespace"],
        name=metadata["name"],
        boot_id=boot_id,
        request=result["request"].split("/")[0],
        pool=result["pool"],
        device=result["device"],
        share_id=result.get("shareID"),
        gpu=device.gpu.uuid,
        profile=placement.profile if placement else None,
        start=placement.start if placement else None,
        isolation=config.isolation,
        purpose=config.purpose,
        compute_percent=percent,
        memory_mib=memory,
        clients=clients,
    )


def _consumed(capacity: dict[str, str]) -> tuple[int, int, int]:
    """Percent, MiB and clients that the scheduler accounted: the request, rounded up by the device's policy."""
    return int(capacity["computePercent"]), quantity_mib(capacity["memory"]), int(capacity["clients"])


def _config(who: str, allocation: dict[str, Any], request: str) -> ShareConfig:
    """The last of our opaque configurations that applies to the request: a claim's comes after its class's."""
    config = ShareConfig()
    for entry in allocation.get("config") or ():
        opaque = entry.get("opaque") or {}
        if opaque.get("driver") != names.DRIVER or (entry.get("requests") and request not in entry["requests"]):
            continue
        try:
            config = ShareConfig.model_validate(opaque["parameters"])
        except ValidationError as error:
            raise ClaimRefusedError(f"{who}: spec.devices.config opaque parameters: {faults(error)}") from error
    return config


class ClaimStore:
    """One small file per claim."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _path(self, uid: str) -> Path:
        return self.folder / f"{uid}.json"

    def read(self, uid: str) -> ClaimRecord | None:
        """The claim's record; None where there is none, or none that can be read.

        Fields of a newer agent are ignored, so that an older one can take over. A file that cannot be read is moved
        aside: what it held is found by the sweep, and by the next prepare of that claim.
        """
        path = self._path(uid)
        try:
            content = json.loads(path.read_text())
            return ClaimRecord(**{k: v for k, v in content.items() if k in _FIELDS})
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, AttributeError) as error:
            log.error("claim file %s cannot be read (%s): moved aside as %s%s", path, error, uid, _BROKEN)
            with contextlib.suppress(FileNotFoundError):
                path.rename(self.folder / f"{uid}{_BROKEN}")
            return None

    def all(self) -> list[ClaimRecord]:
        found = (self.read(path.stem) for path in sorted(self.folder.glob("[!.]*.json")))
        return [record for record in found if record is not None]

    def write(self, record: ClaimRecord) -> None:
        write_atomically(self._path(record.uid), json.dumps(asdict(record)))

    def broken(self) -> set[str]:
        """UIDs of claims whose file could not be read."""
        return {path.name.removesuffix(_BROKEN) for path in self.folder.glob(f"*{_BROKEN}")}

    def remove(self, uid: str) -> None:
        remove(self._path(uid))
        (self.folder / f"{uid}{_BROKEN}").unlink(missing_ok=True)


_FIELDS = {field.name for field in fields(ClaimRecord)}
