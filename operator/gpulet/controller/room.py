"""The room that serving leaves, handed out within one pass to profiling and tuning. Keeps the pass's own takings."""

from dataclasses import replace
from typing import Literal

from gpulet.model.device import Device, Gpu
from gpulet.model.plan import Plan, Problem, RoomRequest, Usage
from gpulet.planner import find_room


class Room:
    """Asks the planner for room; what was handed out in this pass counts as taken."""

    def __init__(self, problem: Problem, plan: Plan) -> None:
        self._problem = problem
        self._plan = plan

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        return self._problem.gpus

    def why_not(self, *, memory_mib: int, product: str | None = None) -> str:
        """Why ``take`` found nothing, with what helps."""
        fleet = [gpu for gpu in self.gpus if product is None or gpu.product == product]
        if not fleet:
            there = ", ".join(sorted({gpu.product for gpu in self.gpus}))
            return f"the cluster has no {product or 'GPU'}" + (f"; it has {there}" if there else "")
        largest = max(max([gpu.memory_mib, *(p.memory_mib for p in gpu.placements)]) for gpu in fleet)
        if memory_mib > largest:
            return f"it asks for {memory_mib} MiB, and no device has more than {largest} MiB: ask for less"
        return "no device is free of serving; it starts as soon as one is"

    def take(
        self,
        *,
        namespace: str,
        purpose: Literal["tune", "profile"],
        compute_percent: int,
        memory_mib: int,
        product: str | None = None,
    ) -> Device | None:
        """A device for this share, or None."""
        request = RoomRequest(
            namespace=namespace,
            purpose=purpose,
            compute_percent=compute_percent,
            memory_mib=memory_mib,
            clients=1,
            product=product,
        )
        device = find_room(self._problem, self._plan, request)
        if device is not None:
            usage = Usage(
                device, compute_percent, memory_mib, 1, namespace, "Any" if purpose == "tune" else "None", purpose
            )
            self._problem = replace(self._problem, usages=(*self._problem.usages, usage))
        return device
