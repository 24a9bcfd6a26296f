"""Where the scheduler said no. Remembered with exponential backoff, forgotten as soon as the scheduler says yes.

This is the one memory a pass has of earlier ones. Losing it (a restart) costs one more refusal, nothing else.
"""

from dataclasses import dataclass, field

from gpulet.api.gpulet import Gpulet
from gpulet.build.gpulet import share_of
from gpulet.controller.world import Key, World, deleting, is_planned
from gpulet.model.demand import ModelId
from gpulet.model.device import Device
from gpulet.model.plan import Refusal
from gpulet.status.gpulet import scheduling_refusal

FIRST_BACKOFF_S = 60.0
LONGEST_BACKOFF_S = 1800.0
Place = tuple[ModelId, Device | None]


@dataclass
class _Mark:
    message: str
    until_s: float
    times: int


@dataclass
class Refusals:
    """Times are of one monotonic clock, given by the caller."""

    unusable_after_s: float
    _pending_since_s: dict[Key, float] = field(default_factory=dict)
    _marks: dict[Place, _Mark] = field(default_factory=dict)

    def observe(self, world: World, *, now_s: float) -> tuple[Refusal, ...]:
        """Takes in what the scheduler says of our pods; answers the refusals in force."""
        for key, gpulet in world.gpulets.items():
            if gpulet.spec.models is None or not is_planned(gpulet):
                continue
            self._observe_one(world, key, gpulet, now_s)
        for key in self._pending_since_s.keys() - world.gpulets.keys():
            del self._pending_since_s[key]
        # A mark that has been over for long counts for nothing: the next refusal starts at the first backoff again.
        self._marks = {place: mark for place, mark in self._marks.items() if now_s - mark.until_s < LONGEST_BACKOFF_S}
        return tuple(
            Refusal(model, device, mark.message)
            for (model, device), mark in sorted(self._marks.items(), key=lambda item: (item[0][0], str(item[0][1])))
            if mark.until_s > now_s
        )

    def mark(self, model: ModelId, device: Device | None, message: str, *, now_s: float) -> None:
        """This model cannot be there for now (``device`` None: anywhere)."""
        previous = self._marks.get((model, device))
        if previous is not None and previous.until_s > now_s:
            previous.message = message
            return
        times = previous.times + 1 if previous is not None else 0
        backoff_s = min(FIRST_BACKOFF_S * 2**times, LONGEST_BACKOFF_S)
        self._marks[model, device] = _Mark(message, now_s + backoff_s, times)

    def next_expiry_s(self, *, now_s: float) -> float | None:
        """When the next refusal ends, so that the loop wakes for it."""
        return min((m.until_s for m in self._marks.values() if m.until_s > now_s), default=None)

    def _observe_one(self, world: World, key: Key, gpulet: Gpulet, now_s: float) -> None:
        pod, device = world.pods.get(key), share_of(gpulet.spec).device
        message = scheduling_refusal(pod)
        models = [ModelId(key[0], m.name) for m in gpulet.spec.models or ()]
        if pod is not None and pod["spec"].get("nodeName"):
            for model in models:
                self._marks.pop((model, device), None)
        if message is None or _being_vacated(world, device):
            self._pending_since_s.pop(key, None)
            return
        since = self._pending_since_s.setdefault(key, now_s)
        if now_s - since >= self.unusable_after_s:
            for model in models:
                self.mark(model, device, message, now_s=now_s)


def _being_vacated(world: World, device: Device) -> bool:
    """Whether a share of our own is just leaving this GPU: the scheduler's no will not last."""
    return any(
        gpulet.metadata.deletion_timestamp is not None and share_of(gpulet.spec).device.gpu == device.gpu
        for gpulet in world.gpulets.values()
    ) or any(
        deleting(pod)
        and key not in world.gpulets
        and pod["spec"].get("nodeName") == device.node
        and pod["spec"].get("resourceClaims")
        for key, pod in world.pods.items()
    )
