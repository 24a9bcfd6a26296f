"""Children that the API server does not accept: asked for again with exponential backoff, told on their owner."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpulet.api import names
from gpulet.controller.world import Key

FIRST_BACKOFF_S = 10.0
LONGEST_BACKOFF_S = 300.0
Object = tuple[str, Key]
"""(kind, key)."""
_OWNERS = ("TuningJob", "ModelProfile")


@dataclass
class _Mark:
    owner: Object
    message: str
    until_s: float
    backoff_s: float


@dataclass
class RefusedChildren:
    """What a quota, an admission policy or validation has said of parts of TuningJobs and ModelProfiles, and of
    TuningJobs themselves. (Serving shares are planned elsewhere instead: see ``Refusals``.)

    The memory of one process: losing it costs one more request a child. Times are of one monotonic clock.
    """

    _marks: dict[Object, _Mark] = field(default_factory=dict)

    def may_ask(self, child: Object, *, now_s: float) -> bool:
        """Whether it was never refused, or its backoff is over."""
        mark = self._marks.get(child)
        return mark is None or now_s >= mark.until_s

    def refuse(self, child: Object, owner: Object, message: str, *, now_s: float) -> None:
        """Each refusal in a row doubles the wait."""
        previous = self._marks.get(child)
        backoff_s = FIRST_BACKOFF_S if previous is None else min(previous.backoff_s * 2, LONGEST_BACKOFF_S)
        self._marks[child] = _Mark(owner, message, now_s + backoff_s, backoff_s)

    def keep(self, refused: set[Object]) -> None:
        """Forgets all others: they were accepted, or nobody wants them any more."""
        self._marks = {child: mark for child, mark in self._marks.items() if child in refused}

    def accept(self, child: Object) -> None:
        self._marks.pop(child, None)

    @property
    def by_owner(self) -> Mapping[Object, str]:
        """The API server's words of the first child of each owner."""
        return {mark.owner: mark.message for _, mark in sorted(self._marks.items(), reverse=True)}


def child_of(manifest: Mapping[str, Any]) -> Object:
    metadata = manifest["metadata"]
    return manifest["kind"], (metadata.get("namespace", ""), metadata["name"])


def owner_of(manifest: Mapping[str, Any], gpulet: Mapping[str, Any] | None) -> Object | None:
    """Who is told that ``manifest`` was refused; None for parts of what serves. ``gpulet``: what it belongs to."""
    namespace = manifest["metadata"].get("namespace", "")
    for reference in (gpulet or manifest)["metadata"].get("ownerReferences") or ():
        kind = reference["kind"]
        if kind in _OWNERS or (kind == "InferenceModel" and manifest["kind"] == "TuningJob"):
            return kind, (namespace, reference["name"])
    return None


def gpulet_key(manifest: Mapping[str, Any]) -> Key | None:
    """Of the Gpulet that a claim or pod belongs to."""
    labels = manifest["metadata"].get("labels") or {}
    name = labels.get(names.LABEL_GPULET)
    return (manifest["metadata"]["namespace"], name) if name is not None else None
