"""What is wrong with one object stays with that object: it says so in its own status, and stops nobody else."""

import logging
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, TypeVar

from pydantic import ValidationError

from gpulet.api.base import Condition, Resource
from gpulet.controller.actions import Action, WriteStatus
from gpulet.controller.world import World, key_of
from gpulet.status.conditions import conditions, kstatus, no

log = logging.getLogger("gpulet.faults")

R = TypeVar("R", bound=Resource[Any, Any])


def apart(objects: Iterable[R], reconcile: Callable[[R], list[Action]], *, now: datetime) -> list[Action]:
    """The actions of all; an object on which ``reconcile`` fails gets Ready=False InternalError instead of them.

    Everything else of its status stays as it was: what is known of what it serves is still known.
    """
    actions: list[Action] = []
    for one in objects:
        try:
            actions += reconcile(one)
        except Exception as error:  # a bug, or a state nobody thought of
            kind = type(one).__name__
            log.exception("%s %s/%s cannot be reconciled", kind, *one.key)
            words = f"{type(error).__name__}: {error}; please report it with the controller's log"
            actions.append(_not_ready(kind, one.to_dict(), words, now=now))
    return actions


def invalid_statuses(world: World, *, now: datetime) -> list[Action]:
    """Of objects that the API server let through and that this version cannot read."""
    return [
        _not_ready(
            invalid.kind,
            invalid.raw,
            f"spec.{invalid.message}".replace("spec.spec.", "spec."),
            now=now,
            reason="InvalidSpec",
        )
        for invalid in world.invalid
    ]


def _not_ready(
    kind: str, raw: dict[str, Any], message: str, *, now: datetime, reason: str = "InternalError"
) -> WriteStatus:
    generation = raw["metadata"].get("generation", 0)
    ready = no("Ready", reason, message)
    before = raw.get("status") or {}
    previous = [Condition.model_validate(c) for c in before.get("conditions") or () if _readable(c)]
    made = conditions(previous, [ready, *kstatus(ready, stalled=ready)], generation=generation, now=now)
    new = {c.type for c in made}
    kept = [c for c in previous if c.type not in new] if reason == "InternalError" else []
    status = {"observedGeneration": generation, "conditions": [c.to_dict() for c in [*kept, *made]]}
    return WriteStatus(kind, key_of(raw), before | status if kept else status)


def _readable(condition: object) -> bool:
    try:
        Condition.model_validate(condition)
    except ValidationError:
        return False
    return True
