"""What a node's GPUs offer, as named devices. Pure; slices and prepare read the same list."""

from collections.abc import Iterable
from dataclasses import dataclass

from gpulet.model.device import Placement
from gpulet.nvidia.source import PhysicalGpu


@dataclass(frozen=True)
class NodeDevice:
    """A whole GPU, or one MIG placement of it."""

    pool: str
    name: str
    gpu: PhysicalGpu
    placement: Placement | None = None

    @property
    def memory_mib(self) -> int:
        return self.placement.memory_mib if self.placement else self.gpu.memory_mib

    @property
    def clients(self) -> int:
        return self.placement.clients if self.placement else self.gpu.clients

    @property
    def compute_slices(self) -> int:
        return self.placement.compute_slices if self.placement else self.gpu.compute_slices

    @property
    def millicores(self) -> int:
        return self.gpu.millicores * self.compute_slices // self.gpu.compute_slices

    @property
    def slices(self) -> range:
        """The GPU's memory slices that this device takes."""
        if self.placement is None:
            return range(self.gpu.memory_slices)
        return range(self.placement.start, self.placement.start + self.placement.size)

    def overlaps(self, other: "NodeDevice") -> bool:
        """Whether both, being different devices, need a common part of one GPU."""
        return self.gpu.uuid == other.gpu.uuid and bool(set(self.slices) & set(other.slices))


def pool_name(node: str, gpu: PhysicalGpu) -> str:
    return f"{node}/{gpu.uuid.lower()}"


def device_name(gpu: PhysicalGpu, placement: Placement | None) -> str:
    """A DNS label; the profile's real name goes into an attribute."""
    if placement is None:
        return f"gpu-{gpu.index}"
    profile = placement.profile.replace(".", "-").replace("+", "-")
    return f"gpu-{gpu.index}-mig-{profile}-{placement.start}"


def devices_of(node: str, gpu: PhysicalGpu) -> list[NodeDevice]:
    """The GPU's devices in its current mode."""
    parts: list[Placement | None] = [None] if gpu.whole else []
    parts += gpu.placements
    return [NodeDevice(pool_name(node, gpu), device_name(gpu, part), gpu, part) for part in parts]


def inventory(node: str, gpus: Iterable[PhysicalGpu]) -> dict[tuple[str, str], NodeDevice]:
    """All devices by (pool, name)."""
    return {(d.pool, d.name): d for gpu in gpus for d in devices_of(node, gpu)}
