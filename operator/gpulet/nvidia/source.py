"""What the agent needs of GPUs, whoever provides them: inventory, MIG instances, compute mode."""

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from gpulet.model.device import Placement
from gpulet.nvidia.mps import SourceName

Health = Literal["healthy", "degraded", "lost"]
ModeChanges = Literal["Never", "WithoutReset", "WithReset"]
"""Which changes of MIG mode the agent may make: WithoutReset on Hopper and later, WithReset on Ampere too."""


class DeviceError(RuntimeError):
    """A GPU did not do what it was asked; the message names the GPU, the step, the driver's reason and the remedy."""


def may_change(allowed: ModeChanges, *, needs_reset: bool) -> bool:
    """Whether the agent may change a GPU's MIG mode, so that the GPU offers what either mode allows."""
    return allowed == "WithReset" or (allowed == "WithoutReset" and not needs_reset)


@dataclass(frozen=True)
class MigMode:
    """A GPU's MIG mode; a pending one waits for a reset or a boot."""

    current: bool
    pending: bool


@dataclass(frozen=True)
class PhysicalGpu:
    """One GPU and what may be made of it now."""

    index: int
    uuid: str
    product: str
    architecture: str
    memory_mib: int
    """Usable memory in whole MiB."""
    clients: int
    """MPS clients the whole GPU takes."""
    compute_slices: int
    memory_slices: int
    whole: bool
    """It can be used uncut now."""
    placements: tuple[Placement, ...]
    """What it can be cut into now."""
    millicores: int
    """CPU that stands for its whole compute when simulated; 0 on a real one."""
    health: Health = "healthy"
    """degraded: nothing new should go there; lost: nothing there works any more."""
    health_reason: str = ""
    """Why it is not healthy, and what helps."""
    mig_mode: MigMode | None = None
    """None: it cannot be cut."""
    driver: str = ""
    """Version of the driver; empty when simulated."""


@dataclass(frozen=True)
class MigInstance:
    """A MIG instance that exists: a GPU instance with its compute instance."""

    uuid: str
    """New at every creation; empty while it is not one whole compute instance: half made, or divided by somebody."""
    profile: str
    start: int
    size: int


@dataclass(frozen=True)
class GpuProcess:
    """A process that has a GPU open."""

    pid: int
    """In the host's PID namespace."""
    kind: Literal["compute", "graphics", "mps"]
    memory_mib: int | None
    """None where the driver does not tell."""


class DeviceSource(Protocol):
    """GPUs of this node. Calls block; each may be repeated after a crash in the middle."""

    @property
    def name(self) -> SourceName: ...

    def boot_id(self) -> str:
        """Changes when MIG instances and compute modes were lost: with the node's boot."""
        ...

    def gpus(self) -> tuple[PhysicalGpu, ...]:
        """All GPUs, by index. One that cannot be read any more is listed as lost, the others with it."""
        ...

    def instances(self, uuid: str) -> tuple[MigInstance, ...]:
        """All MIG instances that exist on a GPU, whoever made them."""
        ...

    def create_instance(self, uuid: str, placement: Placement) -> MigInstance:
        """The instance at exactly this placement, made if it is not there; raises DeviceError.

        Nothing is left behind where the second half (the compute instance) fails.
        """
        ...

    def destroy_instance(self, uuid: str, profile: str, start: int) -> None:
        """Removes the instance at this placement; none there is success. Raises DeviceError while it is in use."""
        ...

    def set_exclusive(self, uuid: str, exclusive: bool) -> None:
        """Compute mode EXCLUSIVE_PROCESS (only MPS may open the GPU) or DEFAULT.

        Exclusive switches MIG mode off where that is allowed and no instance is left; DEFAULT in MIG mode does nothing.
        """
        ...

    def exclusive(self, uuid: str) -> bool: ...

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        """Whoever has the GPU, or the MIG instance with this UUID, open, by PID; raises DeviceError."""
        ...

    def container_edits(self, uuid: str, mig_uuid: str | None) -> dict[str, Any]:
        """CDI containerEdits that make the device itself visible: device nodes, driver files. Empty when simulated."""
        ...
