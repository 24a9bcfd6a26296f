"""The way from the shares that exist to those that are planned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpulet.model.demand import ModelId
from gpulet.model.device import Device
from gpulet.model.plan import Slot

StepKind = Literal["create", "wait", "switch", "drain", "delete", "recut"]


@dataclass(frozen=True)
class Durations:
    """How long a step takes, by its kind. A switch is one write; that every proxy has heard of it is part of the
    wait of whoever joins and of the drain of whoever leaves."""

    create_s: float = 2.0
    wait_s: float = 30.0
    """Pod start, model load and warm-up."""
    drain_s: float = 5.0
    delete_s: float = 3.0
    recut_s: float = 5.0

    def of(self, kind: StepKind) -> float:
        """Seconds that a step of this kind takes."""
        return {
            "create": self.create_s,
            "wait": self.wait_s,
            "switch": 0.0,
            "drain": self.drain_s,
            "delete": self.delete_s,
            "recut": self.recut_s,
        }[kind]


@dataclass(frozen=True)
class Step:
    """One thing to do. Steps of one stage run side by side; a stage begins when the one before it is done."""

    stage: int
    """From 1."""
    kind: StepKind
    reason: str
    slot: Slot | None = None
    """The replica that is created, waited for, drained or deleted."""
    device: Device | None = None
    """The whole GPU that is re-cut."""
    model: ModelId | None = None
    """Whose traffic is switched."""
    routed: tuple[Slot, ...] = ()
    """The replicas that take the model's traffic from this switch on."""
    temporary: bool = False
    """The replica is in no plan: it stands in while its model is on the way."""
