"""Question and answer of the planner."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from gpulet.model.demand import Demand, Isolation, ModelId
from gpulet.model.device import Device, Gpu, Node, Toleration


@dataclass(frozen=True)
class Usage:
    """A share that exists or is foreign, and that the plan has to respect.

    A share of our own plan that may be given up is no Usage: it is in ``Problem.current``.
    """

    device: Device
    compute_percent: int
    memory_mib: int
    clients: int
    namespace: str
    isolation: Isolation = "Any"
    purpose: Literal["serve", "tune", "profile", "foreign"] = "foreign"


@dataclass(frozen=True, order=True)
class Turn:
    """One model's part of a gpulet that several models share by duty cycle."""

    model: ModelId
    batch: int
    """Requests it may take in one cycle."""
    busy_us: int
    """Device time that such a batch takes of the cycle."""
    artifact: str | None = None


@dataclass(frozen=True, order=True)
class Slot:
    """One replica of one model on one share of a device: what becomes a Gpulet.

    With ``turns`` it holds several models of one namespace, which run one after the other in every cycle; ``model``,
    ``batch`` and ``artifact`` are then those of the first turn, and the slot is in ``Placed.slots`` of each of them.
    """

    model: ModelId
    device: Device
    compute_percent: int
    memory_mib: int
    clients: int
    batch: int
    instances: int
    queue_delay_us: int = 0
    artifact: str | None = None
    ordinal: int = 0
    """Tells equal replicas on one device apart."""
    turns: tuple[Turn, ...] = ()
    """All models of a gpulet shared by duty cycle, in order; empty: the model is alone in it."""
    cycle_us: int = 0
    """Length of the duty cycle; 0: none."""

    @property
    def models(self) -> tuple[ModelId, ...]:
        return tuple(turn.model for turn in self.turns) or (self.model,)


LatencyRule = Literal["backlog", "half", "duty", "parvagpu"]


Split = Literal["even", "weighted"]
Objective = Literal["gpus", "rate"]


@dataclass(frozen=True)
class PlannerPolicy:
    interference_margin: float = 0.10
    transition_reserve: int = 1
    prices: tuple[tuple[str, float], ...] = ()
    latency_rule: LatencyRule = "backlog"
    """How a profile becomes a sustainable rate: see ``gpulet.planner.throughput``."""
    objective: Objective = "gpus"
    """The fewest (or cheapest) GPUs for the rates as they are, or the highest common factor of all rates on the GPUs
    there are (``Plan.rate_factor``)."""
    fault_domains: bool = False
    """Replicas of a model are on at least two devices, at the price of another GPU if need be, and on two nodes where
    that costs none."""
    empty_nodes: bool = False
    """Among plans of one cost, that which leaves more nodes without a serving share, for an autoscaler to take."""
    node_failure_headroom: bool = False
    """Only as much is placed as still fits when the node with most GPUs is lost."""
    split: Split = "even"
    """How a model's rate is divided among its replicas: the same to each, as a plain Service does it, or in proportion
    to what each sustains (``Placed.slot_per_s``), which needs a router with weights; then replicas may differ."""
    time_sharing: bool = False
    """Small models of one namespace may take turns in one gpulet (a weighted split alone): only for a serving program
    that runs duty cycles."""
    move_price: float = 0.05
    """GPUs (or their price) that the move of one replica may cost under a weighted split."""


@dataclass(frozen=True)
class Refusal:
    """This model cannot be placed on this device for the time being (the scheduler or a quota said no)."""

    model: ModelId
    device: Device | None
    """None: nowhere (a namespace's quota)."""
    reason: str


@dataclass(frozen=True)
class Problem:
    """All that a decision depends on. No clock, no randomness: the same problem gives the same plan."""

    gpus: tuple[Gpu, ...]
    nodes: tuple[Node, ...]
    demands: tuple[Demand, ...]
    usages: tuple[Usage, ...] = ()
    current: tuple[Slot, ...] = ()
    """Replicas that exist now; keeping one costs nothing."""
    refusals: tuple[Refusal, ...] = ()
    policy: PlannerPolicy = PlannerPolicy()


@dataclass(frozen=True)
class RoomRequest:
    """A share for tuning or profiling: it takes what no serving replica of a plan needs."""

    namespace: str
    purpose: Literal["tune", "profile"]
    compute_percent: int
    memory_mib: int
    clients: int = 1
    product: str | None = None
    """None: any."""
    mig: str | None = None
    """MIG profile that the percent is of. None: a whole GPU where one is free, else the smallest free placement."""
    host_cpu_millicores: int = 0
    """Of its pod on a real GPU; on a simulated GPU its share decides."""
    host_memory_mib: int = 0
    tolerations: tuple[Toleration, ...] = ()
    nodes: tuple[str, ...] | None = None
    """Nodes its volumes can be mounted on; None: any."""


@dataclass(frozen=True)
class Placed:
    """A model that fits."""

    model: ModelId
    slots: tuple[Slot, ...]
    predicted_latency_ms: float
    """Of the objective's percentile, at the planned rate."""
    sustainable_per_s: float
    """Largest rate at which the latency rule still holds on these replicas."""
    reason: str
    """Why this share: what limits it."""
    slot_per_s: tuple[float, ...] = ()
    """Rate that each of ``slots`` sustains, in their order: the weights of a weighted split."""


@dataclass(frozen=True)
class Unplaced:
    """A model that does not fit, why, and the nearest change that would make it fit.

    With RateBeyondCluster it may be in ``placed`` too, with as many replicas as there is room for.
    """

    model: ModelId
    reason: str
    """CamelCase, for a condition: NoProfile, Refused, NoDevice, ObjectiveInfeasible, NoMemory, MaxClients, Isolation,
    NoHostResources, RateBeyondCluster, NoRoom."""
    message: str


BoundKind = Literal["proven", "pattern", "volume"]


@dataclass(frozen=True)
class Plan:
    placed: tuple[Placed, ...]
    unplaced: tuple[Unplaced, ...]
    gpus: int
    """GPUs that hold at least one slot."""
    lower_bound: int
    """No plan for the same placed demands uses fewer GPUs, in the sense that ``bound_kind`` says."""
    bound_kind: BoundKind
    bound_covers: tuple[str, ...] = ()
    """Decisions that the bound takes into account, such as mig, mps, memory, clients."""
    notes: tuple[str, ...] = field(default=())
    rate_factor: float | None = None
    """Objective ``rate``: the plan carries the rates of all models that fit at all, times this. None: not asked for."""
    rate_factor_bound: float | None = None
    """No plan carries more than the rates times this, as ``bound_kind`` says it; None: no limit was found."""

    @property
    def slots(self) -> tuple[Slot, ...]:
        """All shares, each once, even if several models take turns in it."""
        return tuple(dict.fromkeys(slot for placed in self.placed for slot in placed.slots))
