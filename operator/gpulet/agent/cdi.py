"""What a container gets with its claim: a CDI spec of our own for each claim (contract: docs/designs/0001)."""

import json
from pathlib import Path
from typing import Any

from gpulet.agent import files
from gpulet.agent.claims import ClaimRecord
from gpulet.agent.daemons import DaemonFolders
from gpulet.agent.files import write_atomically
from gpulet.api import names
from gpulet.nvidia.mps import SourceName, memory_limit

_CDI_VERSION = "0.5.0"
"""The lowest that allows device names that begin with a digit, as uids do."""
_LATER = {"netDevices": "1.1.0", "additionalGids": "0.7.0", "intelRdt": "0.7.0"}
"""Edits that a driver's files may need and the versions they came with, latest first."""
_PIPE_IN_CONTAINER = "/run/gpulet/mps/pipe"
_MOUNT_OPTIONS = ["rw", "nosuid", "nodev", "noexec", "bind"]


def cdi_id(record: ClaimRecord) -> str:
    return f"{names.CDI_KIND}={record.cdi_name}"


def cdi_path(folder: Path, uid: str) -> Path:
    return folder / f"{names.DRIVER}-{uid}.json"


def environment(record: ClaimRecord, source: SourceName) -> dict[str, str]:
    """The share as the process sees it; these win over variables of the same names in the pod's spec."""
    return {
        "CUDA_MPS_PIPE_DIRECTORY": _PIPE_IN_CONTAINER,
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(record.percent_per_client),
        # Ordinal 0: the container sees one GPU.
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={memory_limit(record.memory_mib_per_client)}",
        "GPULET_COMPUTE_PERCENT": str(record.compute_percent),
        "GPULET_MEMORY_MIB": str(record.memory_mib),
        "GPULET_DEVICE_UUID": record.mps_uuid or record.gpu,
        "GPULET_DEVICE_SOURCE": source,
    }


def spec(
    record: ClaimRecord, folders: DaemonFolders, source: SourceName, device_edits: dict[str, Any]
) -> dict[str, Any]:
    """The CDI spec; ``device_edits`` make the device itself visible and come first."""
    share: dict[str, Any] = {
        "env": [f"{name}={value}" for name, value in environment(record, source).items()],
        "mounts": [
            {"hostPath": str(folders.pipe), "containerPath": _PIPE_IN_CONTAINER, "options": _MOUNT_OPTIONS},
            {"hostPath": str(folders.shm), "containerPath": "/dev/shm", "options": _MOUNT_OPTIONS},
        ],
    }
    edits = {key: [*device_edits.get(key, []), *share.get(key, [])] for key in {**device_edits, **share}}
    return {
        # A runtime refuses a version that it does not know, so no later one than what is in it needs.
        "cdiVersion": next((version for key, version in _LATER.items() if edits.get(key)), _CDI_VERSION),
        "kind": names.CDI_KIND,
        "devices": [{"name": record.cdi_name, "containerEdits": edits}],
    }


def write(folder: Path, uid: str, document: dict[str, Any]) -> None:
    """Atomically: the runtime reads all files of the folder at any time, and only ``*.json`` of them."""
    write_atomically(cdi_path(folder, uid), json.dumps(document, indent=1))


def remove(folder: Path, uid: str) -> None:
    files.remove(cdi_path(folder, uid))


def written(folder: Path) -> dict[str, Path]:
    """Our CDI files by claim uid."""
    prefix = f"{names.DRIVER}-"
    return {path.stem.removeprefix(prefix): path for path in folder.glob(f"{prefix}*.json")}
