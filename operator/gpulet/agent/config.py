"""The agent's configuration: one file for all nodes, unknown keys refused; who this node is comes from the pod."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

_SOCKET_PATH_MAX = 107
"""Of an AF_UNIX address."""


class ConfigurationError(ValueError):
    """The configuration cannot be used; the message names file, field and remedy."""


class _Part(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, use_attribute_docstrings=True
    )


class SimulatedGpus(_Part):
    """Some equal GPUs that are declared instead of found."""

    product: str
    count: Annotated[int, Field(ge=1, le=16)] = 1
    mig: bool = True
    """MIG mode is on. On Ampere a GPU then offers its placements and not itself; on Hopper both."""
    millicores: Annotated[int, Field(ge=0, le=256_000)] = 0
    """CPU that stands for one whole GPU's compute."""


class AgentConfig(_Part):
    """Every path may be changed; the defaults work on a kubelet with default paths."""

    source: Literal["simulated", "nvml"] = "simulated"
    """nvml: the GPUs that the driver shows."""
    gpus: list[SimulatedGpus] = []
    """Simulated GPUs of each node that ``nodes`` does not name; none is a valid number."""
    nodes: dict[str, list[SimulatedGpus]] = {}
    mig_mode_changes: Literal["Never", "WithoutReset", "WithReset"] = "WithoutReset"
    """Changes of MIG mode that the agent may make when a share needs them: WithoutReset on Hopper and later, at once;
    WithReset also on Ampere, which resets the GPU and is done only while nothing uses it."""
    idle_instance_seconds: Annotated[float, Field(ge=0, le=86400)] = 120.0
    """How long a MIG instance is kept that no share uses, so that a restarted pod finds it; it gives way at once."""
    adopt_instances: bool = False
    """MIG instances that somebody else made count as Gpulet's: it removes them where they are unused and in the way."""
    ignored_xids: list[Annotated[int, Field(ge=1, le=1000)]] = []
    """Errors (Xids) that say nothing about a GPU's health, besides those that NVIDIA calls errors of applications."""
    toolkit: Annotated[list[str], Field(min_length=1)] = ["nvidia-ctk"]
    """How to run NVIDIA's nvidia-ctk; in a pod for example chroot, the host's root, nvidia-ctk."""
    open_to_all: bool = False
    """Any pod may claim a share through the DeviceClass shares.gpulet.dev."""
    kubelet_directory: Path = Path("/var/lib/kubelet")
    cdi_directory: Path = Path("/var/run/cdi")
    mps_directory: Path = Path("/run/gpulet/mps")
    state_directory: Path = Path("/var/lib/gpulet")
    proc_directory: Path = Path("/proc")
    shared_memory_tmpfs: bool = True
    """Mount a tmpfs for each device's /dev/shm; false leaves a plain folder (hosts that cannot mount)."""
    taint_clear_seconds: Annotated[float, Field(ge=0, le=86400)] = 300.0
    """A GPU must have been healthy this long before its taint goes; an admin who deletes its slices ends the wait."""
    tolerated_owners: list[str] = []
    """Reasons for withdrawing a GPU that are overlooked, such as NVIDIADevicePlugin; see docs/admins.md."""
    owners_period_seconds: Annotated[float, Field(ge=1, le=3600)] = 60.0
    """How often the API server is asked for other owners of the node's GPUs: they come with labels."""
    ready_file: Path = Path("/tmp/gpulet-agent-ready")
    """Made when the kubelet has registered the agent; the readiness probe looks for it."""
    metrics_port: Annotated[int, Field(ge=0, le=65535)] = 8080
    """Of /metrics, on the pod's address; 0: none."""
    verify_period_seconds: Annotated[float, Field(ge=0.1, le=300)] = 5.0

    @model_validator(mode="after")
    def _socket_paths_fit(self) -> "AgentConfig":
        for field, path in {
            "mpsDirectory": self.mps_directory / f"MIG-{'0' * 36}" / "pipe" / "control_privileged",
            "kubeletDirectory": self.kubelet_directory / "plugins_registry" / f"gpulet.dev-{'0' * 36}-reg.sock",
        }.items():
            if len(str(path)) > _SOCKET_PATH_MAX:
                raise ValueError(f"{field} is too long: {path} exceeds {_SOCKET_PATH_MAX} bytes; choose a shorter path")
        return self

    def gpus_of(self, node: str) -> list[SimulatedGpus]:
        return self.nodes.get(node, self.gpus)


class Identity(_Part):
    """Who this agent is; two of one node run side by side during a rolling update."""

    node_name: Annotated[str, Field(min_length=1, max_length=253)]
    pod_uid: Annotated[str, Field(min_length=1, max_length=64)]


def faults(error: ValidationError) -> str:
    """Each wrong field with what is wrong about it, on one line."""
    return "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}".removeprefix(": ") for e in error.errors())


def load(path: Path, environment: Mapping[str, str] = os.environ) -> tuple[AgentConfig, Identity]:
    """The configuration in ``path`` (empty: all defaults) and the pod's identity; raises ConfigurationError."""
    try:
        document = yaml.safe_load(path.read_text()) or {}
        config = AgentConfig.model_validate(document)
    except OSError as error:
        raise ConfigurationError(
            f"agent configuration {path}: {error.strerror}; mount ConfigMap gpulet-agent"
        ) from error
    except yaml.YAMLError as error:
        raise ConfigurationError(f"agent configuration {path}: {' '.join(str(error).split())}") from error
    except ValidationError as error:
        # One line: it is what the pod's status and gpulet doctor show.
        raise ConfigurationError(f"agent configuration {path}: {faults(error)}") from error
    try:
        identity = Identity(node_name=environment.get("NODE_NAME", ""), pod_uid=environment.get("POD_UID", ""))
    except ValidationError as error:
        raise ConfigurationError(
            "environment NODE_NAME and POD_UID must come from the pod's spec.nodeName and metadata.uid: "
            f"{faults(error)}"
        ) from error
    return config, identity
