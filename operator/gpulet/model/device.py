"""GPUs and what they can be cut into."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Placement:
    """One MIG profile at one start slice of a GPU."""

    profile: str
    start: int
    size: int
    """Memory slices."""
    compute_slices: int
    memory_mib: int
    clients: int
    """CUDA processes that MPS accepts inside it."""


@dataclass(frozen=True)
class Gpu:
    """One physical GPU and what its node publishes of it now."""

    node: str
    uuid: str
    product: str
    memory_mib: int
    clients: int
    compute_slices: int = 7
    whole: bool = True
    """It can be used uncut (Ampere with MIG mode on cannot)."""
    placements: tuple[Placement, ...] = ()
    """What it can be cut into now; empty: it cannot."""
    schedulable: bool = True
    """False while it is tainted, foreign or in maintenance: nothing new goes there."""
    simulated_millicores: int = 0
    """CPU that stands for the whole GPU's compute on a simulated device; 0 on a real one."""


@dataclass(frozen=True, order=True)
class Device:
    """What a share is cut from: a whole GPU (no profile), or one MIG placement of it."""

    node: str
    gpu: str
    profile: str | None = None
    start: int | None = None

    def overlaps(self, other: Device, sizes: dict[str, int]) -> bool:
        """Whether both use a common part of one GPU. ``sizes``: memory slices by MIG profile.

        Of a profile that nobody publishes (any more) we do not know how far it reaches: it overlaps all of its GPU.
        """
        if self.gpu != other.gpu or self.node != other.node:
            return False
        if self.profile is None or other.profile is None or self.start is None or other.start is None:
            return True
        own, others = sizes.get(self.profile), sizes.get(other.profile)
        if own is None or others is None:
            return True
        return self.start < other.start + others and other.start < self.start + own


@dataclass(frozen=True)
class Node:
    """Host resources of a node that our pods may still take."""

    name: str
    free_cpu_millicores: int
    free_memory_mib: int
    free_pods: int = 110
    ready: bool = True
    taints: tuple[Taint, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Taint:
    key: str
    value: str
    effect: str


@dataclass(frozen=True)
class Toleration:
    key: str | None
    operator: str
    value: str | None
    effect: str | None

    def tolerates(self, taint: Taint) -> bool:
        """The rule of kube-scheduler: empty key with Exists tolerates all; no effect means every effect."""
        if self.effect and self.effect != taint.effect:
            return False
        if self.key is None:
            return self.operator == "Exists"
        return self.key == taint.key and (self.operator == "Exists" or (self.value or "") == taint.value)
