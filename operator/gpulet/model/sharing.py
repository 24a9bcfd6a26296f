"""Who may stand beside whom on one device: one MPS daemon, one fault domain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpulet.model.demand import Isolation

Purpose = Literal["serve", "tune", "profile", "foreign"]
Conflict = Literal["None", "Namespace", "Tuning"]


@dataclass(frozen=True, order=True)
class Tenant:
    """What a share of a device says of itself to its neighbours."""

    namespace: str
    isolation: Isolation = "Namespace"
    purpose: Purpose = "serve"


def conflict(one: Tenant, other: Tenant) -> Conflict | None:
    """Why two shares may not be on one device; None if they may.

    ``None`` allows no neighbour; ``Namespace`` none of another namespace; and a crashing candidate kernel of a tuner
    ends every client of its device (design, section 7), so that tuners have tuners alone beside them.
    """
    isolations = {one.isolation, other.isolation}
    if "None" in isolations:
        return "None"
    if "Namespace" in isolations and one.namespace != other.namespace:
        return "Namespace"
    if (one.purpose == "tune") != (other.purpose == "tune"):
        return "Tuning"
    return None
