"""Deterministic names: the same share of the same workload is named alike: a stale cache meets a conflict, no twin."""

import hashlib
import json
from typing import Any

from gpulet.model.device import Device

_PREFIX_LENGTH = 40
_HASH_LENGTH = 10


def short_hash(value: Any) -> str:
    """Ten hexadecimal digits over the canonical JSON of ``value``."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH_LENGTH]


def gpulet_name(
    *,
    owner: str,
    namespace: str,
    device: Device,
    compute_percent: int,
    memory_mib: int,
    clients: int,
    workload: dict[str, Any],
    ordinal: int,
) -> str:
    """Owner prefix and a hash of everything that makes this Gpulet this one (design, section 2)."""
    digest = short_hash(
        {
            "namespace": namespace,
            "device": [device.node, device.gpu, device.profile, device.start],
            "sizes": [compute_percent, memory_mib, clients],
            "workload": workload,
            "ordinal": ordinal,
        }
    )
    return f"{owner[:_PREFIX_LENGTH].rstrip('-')}-{digest}"
