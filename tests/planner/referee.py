"""The smallest loss of any way from one plan to another, by trying everything (Dijkstra over all states).

A state is a set of replicas. One round removes any set of them, then creates any set that fits beside the rest:
planned ones, present ones that had left, and stand-ins (one a model, two at a time) of its present or planned shape on
any GPU. What is in both plans is left alone. What a round creates carries nothing before its end. Percent, memory and
clients of whole GPUs only: no MIG, no isolation, hosts without limit.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import replace

from gpulet.model.device import Device
from gpulet.model.plan import Plan, Problem
from gpulet.model.steps import Durations
from tests.planner.replay import best_per_s, rate_per_s

MOST_STAND_INS = 2


class Referee:
    def __init__(self, problem: Problem, plan: Plan, durations: Durations) -> None:
        own = tuple(dict.fromkeys((*problem.current, *plan.slots)))
        shapes = dict.fromkeys(replace(s, device=Device("", ""), ordinal=0) for s in own)
        stand_ins = [
            replace(shape, device=Device(g.node, g.uuid), ordinal=99) for shape in shapes for g in problem.gpus
        ]
        self.slots = (*own, *stand_ins)
        self.start = sum(1 << i for i, s in enumerate(own) if s in problem.current)
        self.goal = sum(1 << i for i, s in enumerate(own) if s in plan.slots)
        self.own = (1 << len(own)) - 1
        self.kept = self.start & self.goal
        names = [g.uuid for g in problem.gpus]
        self.gpu = [names.index(s.device.gpu) for s in self.slots]
        self.limits = [(100, g.memory_mib, g.clients) for g in problem.gpus]
        self.needs = [(s.compute_percent, s.memory_mib, s.clients) for s in self.slots]
        self.models = sorted({s.model for s in self.slots})
        self.of_model = [sum(1 << i for i, s in enumerate(self.slots) if s.model == m) for m in self.models]
        self.model = [self.models.index(s.model) for s in self.slots]
        self.rates = [rate_per_s(problem, s) for s in self.slots]
        moving = {s.model for i, s in enumerate(own) if (self.start ^ self.goal) >> i & 1}
        self.of_kept_models = sum(b for m, b in zip(self.models, self.of_model, strict=True) if m not in moving)
        self.required = [self._required(problem, plan, k) for k in range(len(self.models))]
        self.lacks: dict[tuple[int, int], float] = {}
        self.durations = durations

    def _required(self, problem: Problem, plan: Plan, k: int) -> float:
        model = self.models[k]
        wanted = next(d.requests_per_s for d in problem.demands if d.model == model)
        sets = [{s for s in slots if s.model == model} for slots in (problem.current, plan.slots)]
        return min(wanted, *(best_per_s(problem, found) for found in sets))

    def _lacking(self, k: int, bits: int) -> float:
        if (k, bits) not in self.lacks:
            rates = sorted((r for i, r in enumerate(self.rates) if bits >> i & 1), reverse=True)
            carried = max((n * r for n, r in enumerate(rates, 1)), default=0.0)
            lack = self.required[k] - carried
            self.lacks[k, bits] = lack if lack > 1e-6 * self.required[k] else 0.0
        return self.lacks[k, bits]

    def shortage(self, state: int) -> float:
        return sum(self._lacking(k, state & bits) for k, bits in enumerate(self.of_model))

    def room(self, state: int) -> list[list[int]]:
        left = [list(limit) for limit in self.limits]
        for i in range(len(self.slots)):
            if state >> i & 1:
                for r in range(3):
                    left[self.gpu[i]][r] -= self.needs[i][r]
        return left

    def creations(self, state: int) -> Iterator[int]:
        """All sets that fit beside a state, the empty one among them."""
        left = self.room(state)
        still = self.of_kept_models
        missing = [i for i in range(len(self.slots)) if not (state | still) >> i & 1]
        yield from self._extend(missing, 0, 0, state, left)

    def _extend(self, missing: list[int], at: int, chosen: int, state: int, left: list[list[int]]) -> Iterator[int]:
        yield chosen
        for n in range(at, len(missing)):
            i = missing[n]
            if not self.own >> i & 1 and self._has_stand_in(i, state | chosen):
                continue
            if any(self.needs[i][r] > left[self.gpu[i]][r] for r in range(3)):
                continue
            for r in range(3):
                left[self.gpu[i]][r] -= self.needs[i][r]
            yield from self._extend(missing, n + 1, chosen | 1 << i, state, left)
            for r in range(3):
                left[self.gpu[i]][r] += self.needs[i][r]

    def _has_stand_in(self, i: int, state: int) -> bool:
        """Whether its model has one already, or two others have."""
        found = state & ~self.own
        return found.bit_count() >= MOST_STAND_INS or bool(self.of_model[self.model[i]] & found)

    def best_below(self, limit: float, *, most_states: int) -> float | None:
        """The least loss if it is below ``limit``, else ``limit``; None if more than ``most_states`` were looked at."""
        queue, least, done = [(0.0, self.start)], {self.start: 0.0}, set()
        while queue:
            loss, state = heapq.heappop(queue)
            if state & self.goal == self.goal:
                return loss
            if state in done:
                continue
            done.add(state)
            if len(done) > most_states:
                return None
            for after, total in self._following(state, loss, limit):
                if total < least.get(after, limit) - 1e-9:
                    least[after] = total
                    heapq.heappush(queue, (total, after))
        return limit

    def _following(self, state: int, loss: float, limit: float) -> Iterator[tuple[int, float]]:
        leave_s = self.durations.drain_s + self.durations.delete_s
        come_s = self.durations.create_s + self.durations.wait_s
        for removed in subsets(state & ~self.kept):
            rest = state & ~removed
            per_s, leaving_s = self.shortage(rest), leave_s if removed else 0.0
            if loss + per_s * leaving_s >= limit:
                continue
            if loss + per_s * (leaving_s + come_s) >= limit:
                yield rest, loss + per_s * leaving_s
                continue
            for created in self.creations(rest):
                yield rest | created, loss + per_s * (leaving_s + (come_s if created else 0.0))


def subsets(mask: int) -> Iterator[int]:
    sub = mask
    while True:
        yield sub
        if not sub:
            return
        sub = (sub - 1) & mask
