"""What was measured of a model."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class ProfilePoint:
    """One measurement of one replica: a closed loop of full batches."""

    product: str
    mig: str | None
    compute_percent: int
    batch: int
    instances: int
    mean_us: float
    p50_us: float
    p99_us: float
    """Of one batch, microseconds."""
    throughput_per_s: float
    """Requests, not batches, per second."""
    memory_mib: int


@dataclass(frozen=True)
class Resident:
    """A replica as its neighbours on a GPU feel it: what it uses of the parts that shares do not divide."""

    product: str
    compute_percent: int
    l2: float = -1.0
    """L2 cache and memory bandwidth that it uses in a solo run on the whole GPU, 0 to 1; negative: not measured."""
    dram: float = -1.0
    active: float = 1.0
    """Part of its latency in which kernels run, 0 to 1; the rest is launching them."""

    @property
    def known(self) -> bool:
        return self.l2 >= 0 and self.dram >= 0


@dataclass(frozen=True)
class CoRun:
    """One measurement of a replica beside others on one GPU."""

    victim: Resident
    others: tuple[Resident, ...]
    slowdown: float
    """Its mean latency there, divided by that alone at the same share and batch."""


@dataclass(frozen=True)
class Profile:
    """The surface of one model."""

    points: tuple[ProfilePoint, ...]
    source: str = ""
    """Which ModelProfile it is, for explanations."""
    co_runs: tuple[CoRun, ...] = ()
    """It beside others; from these also what it uses of a GPU, for its neighbours' sake."""

    def resident(self, product: str, compute_percent: int) -> Resident:
        """It as a neighbour, at the batch that uses most of what was measured; unknown if nothing was."""
        own = [c.victim for c in self.co_runs if c.victim.product == product and c.victim.known]
        worst = max(own, key=lambda r: (r.l2 + r.dram, r.l2, r.active), default=Resident(product, compute_percent))
        return replace(worst, compute_percent=compute_percent)
