"""What a pass decided to do, as values: everything above is pure, one executor carries them out."""

from dataclasses import dataclass
from typing import Any

from gpulet.controller.world import Key


@dataclass(frozen=True)
class Apply:
    """Server-side apply of a manifest: creates it, or takes the named fields."""

    manifest: dict[str, Any]


@dataclass(frozen=True)
class Delete:
    """Delete an object; that it is gone already is success. ``uid`` guards against deleting a successor."""

    kind: str
    key: Key
    uid: str | None = None
    reason: str = ""


@dataclass(frozen=True)
class Unroute:
    """Take a pod out of its model's Service."""

    key: Key


@dataclass(frozen=True)
class Leave:
    """Mark a Gpulet as one that goes when its replacement serves."""

    key: Key


@dataclass(frozen=True)
class Keep:
    """Take the marks of leaving away again: it is wanted after all, or its replacement does not serve."""

    key: Key
    stays: bool
    """False: only its pod takes traffic again, it still goes when it is replaced."""


@dataclass(frozen=True)
class WriteStatus:
    """The whole status of an object of ours."""

    kind: str
    key: Key
    status: dict[str, Any]


@dataclass(frozen=True)
class Tell:
    """A Kubernetes Event on an object."""

    regarding: dict[str, Any]
    reason: str
    message: str
    warning: bool = False


Action = Apply | Delete | Unroute | Leave | Keep | WriteStatus | Tell
