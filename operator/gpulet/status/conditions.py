"""Conditions: facts derived anew in each pass; only a change of status moves the transition time."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from gpulet.api.base import Condition, ConditionStatus

_MESSAGE_LENGTH = 1024


@dataclass(frozen=True)
class Fact:
    """What is true of an object now. ``message`` holds no times and no random names: each pass must find it equal."""

    type: str
    status: ConditionStatus
    reason: str
    message: str = ""

    @property
    def true(self) -> bool:
        return self.status == "True"


def yes(type_: str, reason: str, message: str = "") -> Fact:
    return Fact(type_, "True", reason, message)


def no(type_: str, reason: str, message: str = "") -> Fact:
    return Fact(type_, "False", reason, message)


def unknown(type_: str, reason: str, message: str = "") -> Fact:
    return Fact(type_, "Unknown", reason, message)


def conditions(
    previous: Iterable[Condition], facts: Iterable[Fact], *, generation: int, now: datetime
) -> list[Condition]:
    """The facts as conditions of this generation, each with the time since when its status has held."""
    since = {c.type: (c.status, c.last_transition_time) for c in previous}
    result = []
    for fact in facts:
        status, time = since.get(fact.type, (None, now))
        result.append(
            Condition(
                type=fact.type,
                status=fact.status,
                reason=fact.reason,
                message=_bounded(fact.message),
                observed_generation=generation,
                last_transition_time=time if status == fact.status else now,
            )
        )
    return result


def ready_from(dependents: list[Fact]) -> Fact:
    """Ready follows from its dependents: the first that is False, else the first Unknown, decides."""
    for status in ("False", "Unknown"):
        for fact in dependents:
            if fact.status == status:
                return Fact(
                    "Ready", fact.status, fact.reason, f"{fact.type}: {fact.message}" if fact.message else fact.type
                )
    return yes("Ready", "Ready")


def kstatus(ready: Fact, *, stalled: Fact | None) -> list[Fact]:
    """Reconciling and Stalled as kstatus reads them: at most one of the two is True, neither once Ready."""
    if stalled is not None:
        return [no("Reconciling", stalled.reason), yes("Stalled", stalled.reason, stalled.message)]
    if ready.true:
        return [no("Reconciling", "Ready"), no("Stalled", "Ready")]
    return [yes("Reconciling", ready.reason, ready.message), no("Stalled", "Progressing")]


def find(conditions_: Iterable[Condition], type_: str) -> Condition | None:
    return next((c for c in conditions_ if c.type == type_), None)


def _bounded(message: str) -> str:
    return message if len(message) <= _MESSAGE_LENGTH else message[: _MESSAGE_LENGTH - 1] + "…"
