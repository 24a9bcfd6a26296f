"""What the models need at this moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpulet.model.device import Toleration
from gpulet.model.profile import Profile

Mode = Literal["Auto", "MPS", "MIG", "Exclusive"]
Isolation = Literal["Any", "Namespace", "None"]


@dataclass(frozen=True, order=True)
class ModelId:
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True)
class Demand:
    """A model's rate and latency objective at this moment, and where it may run."""

    model: ModelId
    requests_per_s: float
    """Headroom included."""
    latency_ms: float
    percentile: float
    profile: Profile
    mode: Mode = "Auto"
    isolation: Isolation = "Namespace"
    products: tuple[str, ...] | None = None
    priority: int = 0
    host_cpu_millicores: int = 0
    """Of one pod on a real GPU; on a simulated GPU its share decides."""
    host_memory_mib: int = 0
    tolerations: tuple[Toleration, ...] = ()
    nodes: tuple[str, ...] | None = None
    """Nodes its volumes can be mounted on; None: any."""
    artifact: str | None = None
    """URI of an adopted tuned artifact, part of the workload's identity."""
    fixed_batch: int | None = None
    """A tuned artifact runs at this batch alone."""
    slowdowns: tuple[tuple[str, int, float], ...] = ()
    """Product, percent of a whole GPU, factor on its latency beside the worst neighbours it may get there; a share that
    is not among them has the policy's margin. The planner fills this in (``gpulet.planner.neighbours``)."""
