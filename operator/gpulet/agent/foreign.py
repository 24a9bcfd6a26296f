"""Who else owns a node's GPUs, by the signs that they leave. Pure; we only ever step back.

Signs from NVIDIA's k8s-device-plugin v0.20, GPU Operator v26.7 (mig-manager), DRA driver v0.5, HAMi v2.10, nos 0.1 and
kai-gpu-fractioning (autumn 2026).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpulet.nvidia.source import PhysicalGpu

_NVIDIA_DRA_DRIVERS = ("gpu.nvidia.com",)
_KAI_CONDITIONS = ("gpu-sharing.nvidia.com/", "gpu-fractioning.")
_CONTROL_PROGRAM = "nvidia-cuda-mps-control"


REMEDIES = {
    "NVIDIADevicePlugin": "label the node nvidia.com/gpu.deploy.device-plugin=false",
    "NVIDIADRADriver": "keep its GPU plugin off this node: it destroys MIG devices unknown to it",
    "MIGManager": "remove the label nvidia.com/mig.config and set nvidia.com/gpu.deploy.mig-manager=false",
    "HAMi": "keep HAMi's device plugin off this node",
    "Nos": "remove the label nos.nebuly.com/gpu-partitioning",
    "KAIGpuFractioning": "keep kai-gpu-fractioning off this node",
    "ForeignMPSDaemon": "it is left alone: quit it, or give it other GPUs by CUDA_VISIBLE_DEVICES",
    "ForeignProcess": "end them, or move them off this node",
}
"""What an admin does about each owner."""


@dataclass(frozen=True, order=True)
class Owner:
    """Another owner: a reason for machines, and for people what was seen and what to do."""

    reason: str
    message: str


@dataclass(frozen=True)
class HostDaemon:
    """A control daemon of MPS that is not ours."""

    pid: int
    pipe: str
    devices: str | None
    """Its CUDA_VISIBLE_DEVICES; None: it was given none and serves all GPUs."""
    pci_order: bool
    """Whether its indices are NVML's."""


def node_owners(node: Mapping[str, Any], slices: Iterable[Mapping[str, Any]]) -> list[Owner]:
    """Owners of all of a node's GPUs, from its Node and the ResourceSlices of other drivers for it."""
    metadata, status = node["metadata"], node.get("status") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    found = [
        _device_plugin(status.get("allocatable") or {}),
        _dra_driver(slices),
        _mig_manager(labels),
        _hami(annotations),
        _nos(labels),
        _kai(status.get("conditions") or ()),
    ]
    return sorted(owner for owner in found if owner is not None)


def _owner(reason: str, seen: str) -> Owner:
    return Owner(reason, f"{seen}; {REMEDIES[reason]}")


def _device_plugin(allocatable: Mapping[str, Any]) -> Owner | None:
    names = (n for n, v in allocatable.items() if n.startswith("nvidia.com/") and str(v) != "0")
    # What a plugin leaves behind when it goes stays in the node's status with 0 (failure case C15).
    offered = sorted(n for n in names if n in ("nvidia.com/gpu", "nvidia.com/gpu.shared") or "/mig-" in n)
    return _owner("NVIDIADevicePlugin", f"the node offers {', '.join(offered)}") if offered else None


def _dra_driver(slices: Iterable[Mapping[str, Any]]) -> Owner | None:
    drivers = sorted({s["spec"]["driver"] for s in slices} & set(_NVIDIA_DRA_DRIVERS))
    return _owner("NVIDIADRADriver", f"the node has ResourceSlices of {', '.join(drivers)}") if drivers else None


def _mig_manager(labels: Mapping[str, str]) -> Owner | None:
    config = labels.get("nvidia.com/mig.config")
    if not config or labels.get("nvidia.com/gpu.deploy.mig-manager", "").lower() == "false":
        return None
    return _owner("MIGManager", f"mig-manager applies nvidia.com/mig.config={config} to the node")


def _hami(annotations: Mapping[str, str]) -> Owner | None:
    handshake = annotations.get("hami.io/node-handshake", "")
    # Its scheduler marks a node whose plugin is gone so.
    if not handshake or handshake.startswith("Deleted"):
        return None
    return _owner("HAMi", "annotation hami.io/node-handshake says that HAMi's device plugin is alive here")


def _nos(labels: Mapping[str, str]) -> Owner | None:
    kind = labels.get("nos.nebuly.com/gpu-partitioning")
    return _owner("Nos", f"nos partitions this node (nos.nebuly.com/gpu-partitioning={kind})") if kind else None


def _kai(conditions: Iterable[Mapping[str, Any]]) -> Owner | None:
    for condition in conditions:
        if condition["type"].startswith(_KAI_CONDITIONS) and condition["status"] == "True":
            return _owner("KAIGpuFractioning", f"node condition {condition['type']} is True")
    return None


def daemon_of(pid: int, arguments: list[str], environment: Mapping[str, str], ours: str) -> HostDaemon | None:
    """What a process is, if it is a control daemon of somebody else. ``ours``: the folder that our pipes are in."""
    pipe = environment.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
    if not any(a.rpartition("/")[2] == _CONTROL_PROGRAM for a in arguments[:2]) or pipe.startswith(f"{ours}/"):
        return None
    return HostDaemon(
        pid,
        pipe,
        environment.get("CUDA_VISIBLE_DEVICES"),
        environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID",
    )


def served_by(daemon: HostDaemon, gpu: PhysicalGpu, instances: Iterable[str], *, simulated: bool) -> bool:
    """Whether a host's daemon serves the GPU or one of its MIG ``instances`` (UUIDs); in doubt it does.

    A simulated GPU is served by a daemon that names it alone.
    """
    if daemon.devices is None:
        return not simulated
    uuids = [gpu.uuid, *instances]
    for entry in (e.strip() for e in daemon.devices.split(",")):
        if entry.isdigit():
            # Indices are NVML's only in PCI order: otherwise they might be any GPU's.
            if not simulated and (not daemon.pci_order or int(entry) == gpu.index):
                return True
        elif len(entry) > 4 and any(uuid.startswith(entry) for uuid in uuids):
            return True
    return False


def host_daemon_owner(daemon: HostDaemon) -> Owner:
    seen = f"an MPS control daemon of the host (pid {daemon.pid}, pipe {daemon.pipe}) serves the GPU"
    return _owner("ForeignMPSDaemon", seen)


def process_owner(pids: Iterable[int]) -> Owner:
    named = ", ".join(str(pid) for pid in sorted(pids))
    return _owner("ForeignProcess", f"processes outside Gpulet's shares have the GPU open (pids={named})")
