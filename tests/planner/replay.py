"""Carries steps out, one stage after the other, and looks at every state on the way.

Written from the rules alone: what may exist side by side, who may take traffic, what a model carries then.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cache

from gpulet.model.demand import Demand, ModelId
from gpulet.model.device import Device
from gpulet.model.plan import Plan, PlannerPolicy, Problem, Slot
from gpulet.model.steps import Durations, Step
from gpulet.planner.throughput import option_of
from tests.planner.worlds import cut_faults, device_faults, millicores_of

SECONDS = {"create": "create_s", "wait": "wait_s", "drain": "drain_s", "delete": "delete_s", "recut": "recut_s"}


def rate_per_s(problem: Problem, slot: Slot) -> float:
    """What one replica sustains: that of the largest measured share that is no larger."""
    wish = next(d for d in problem.demands if d.model == slot.model)
    product = next(g.product for g in problem.gpus if g.uuid == slot.device.gpu)
    return _rate_per_s(wish, problem.policy, product, slot.device.profile, slot.batch, slot.compute_percent)


@cache
def _rate_per_s(
    wish: Demand, policy: PlannerPolicy, product: str, mig: str | None, batch: int, compute_percent: int
) -> float:
    points = [
        p
        for p in wish.profile.points
        if (p.product, p.mig, p.batch) == (product, mig, batch) and p.compute_percent <= compute_percent
    ]
    option = option_of(wish, max(points, key=lambda p: p.compute_percent), policy)
    return option.replica_per_s if option else 0.0


def carried_per_s(problem: Problem, routed: set[Slot]) -> float:
    """An even split: everybody gets as much as the weakest can take."""
    return len(routed) * min((rate_per_s(problem, s) for s in routed), default=0.0)


def best_per_s(problem: Problem, slots: set[Slot]) -> float:
    """The most that any choice of these replicas carries."""
    rates = sorted((rate_per_s(problem, s) for s in slots), reverse=True)
    return max((n * rate for n, rate in enumerate(rates, 1)), default=0.0)


class Replay:
    def __init__(self, problem: Problem, plan: Plan) -> None:
        self.problem = problem
        self.plan = plan
        self.demands = {d.model: d for d in problem.demands}
        self.exists = set(problem.current)
        self.ready = set(problem.current)
        self.drained: set[Slot] = set()
        self.routed: dict[ModelId, set[Slot]] = defaultdict(set)
        self.required = {d.model: self._required(d) for d in problem.demands}
        for wish in problem.demands:
            self.routed[wish.model] = self._first_routing(wish.model)
        self.faults: list[str] = []
        self.gap: dict[ModelId, float] = defaultdict(float)
        """Requests that were not carried, by model."""
        self.stand_ins = 0

    def _required(self, wish: Demand) -> float:
        now = {s for s in self.problem.current if s.model == wish.model}
        then = {s for s in self.plan.slots if s.model == wish.model}
        return min(wish.requests_per_s, best_per_s(self.problem, now), best_per_s(self.problem, then))

    def _first_routing(self, model: ModelId) -> set[Slot]:
        """What carries most of what exists."""
        own = sorted((s for s in self.exists if s.model == model), key=lambda s: -rate_per_s(self.problem, s))
        choices = [set(own[:n]) for n in range(1, len(own) + 1)]
        return max(choices, key=lambda c: carried_per_s(self.problem, c), default=set())

    def run(self, steps: tuple[Step, ...], durations: Durations) -> Replay:
        for number in sorted({s.stage for s in steps}):
            stage = [s for s in steps if s.stage == number]
            if len({s.kind for s in stage}) != 1:
                self.faults.append(f"stage {number} mixes kinds")
            for step in stage:
                self._begin(step)
            self._look()
            seconds = max(getattr(durations, SECONDS[s.kind]) if s.kind in SECONDS else 0.0 for s in stage)
            for model, required in self.required.items():
                lack = required - carried_per_s(self.problem, self.routed[model])
                self.gap[model] += max(0.0, lack if lack > 1e-6 * required else 0.0) * seconds
            for step in stage:
                self._end(step)
        self._look()
        return self

    def _begin(self, step: Step) -> None:
        slot = step.slot
        if step.kind == "switch":
            if step.model is None or not set(step.routed) <= self.ready:
                self.faults.append(f"traffic to what is not ready: {step}")
            elif any(s.model != step.model or s in self.drained for s in step.routed):
                self.faults.append(f"traffic to what is drained: {step}")
            else:
                self.routed[step.model] = set(step.routed)
        elif step.kind == "create":
            if slot is None or slot in self.exists:
                self.faults.append(f"created twice: {slot}")
            else:
                self.exists.add(slot)
                self.stand_ins += step.temporary
        elif slot is not None and slot not in self.exists:
            self.faults.append(f"{step.kind} of what is not there: {slot}")
        elif step.kind in ("drain", "delete") and slot is not None and slot in self.routed[slot.model]:
            self.faults.append(f"{step.kind} under traffic: {slot}")
        elif step.kind == "delete" and slot not in self.drained:
            self.faults.append(f"deleted before it was drained: {slot}")

    def _end(self, step: Step) -> None:
        if step.slot is None:
            return
        if step.kind == "wait":
            self.ready.add(step.slot)
        elif step.kind == "drain":
            self.drained.add(step.slot)
        elif step.kind == "delete":
            for known in (self.exists, self.ready, self.drained):
                known.discard(step.slot)

    def _look(self) -> None:
        self.faults += state_faults(self.problem, self.exists)

    def all_faults(self) -> list[str]:
        """Those on the way, and at its end: exactly the plan exists, and all of it serves."""
        found = list(self.faults)
        if self.exists != set(self.plan.slots):
            found.append(f"left over or missing: {self.exists ^ set(self.plan.slots)}")
        for placed in self.plan.placed:
            if self.routed[placed.model] != set(placed.slots):
                found.append(f"{placed.model} does not serve from its planned replicas")
        return found

    @property
    def total_gap(self) -> float:
        return sum(self.gap.values())


def state_faults(problem: Problem, exists: set[Slot]) -> list[str]:
    """Every rule that a set of replicas breaks if they exist side by side."""
    demands = {d.model: d for d in problem.demands}
    gpus = {(g.node, g.uuid): g for g in problem.gpus}
    found = []
    by_device: dict[Device, list] = defaultdict(list)
    for share in (*exists, *problem.usages):
        by_device[share.device].append(share)
    for where, users in by_device.items():
        found += device_faults(gpus[where.node, where.gpu], where, users, demands)
    for key in {(d.node, d.gpu) for d in by_device}:
        found += cut_faults(gpus[key], [d for d in by_device if (d.node, d.gpu) == key])
    for host in problem.nodes:
        slots = [s for s in exists if s.device.node == host.name]
        cpu = sum(millicores_of(gpus[s.device.node, s.device.gpu], s, demands[s.model]) for s in slots)
        memory_mib = sum(demands[s.model].host_memory_mib for s in slots)
        if cpu > host.free_cpu_millicores or memory_mib > host.free_memory_mib or len(slots) > host.free_pods:
            found.append(f"host {host.name}")
    return found
