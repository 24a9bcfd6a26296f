"""The way from the current to the new plan as an ordered list of steps with reasons.

Make before break: nobody leaves before what replaces it serves. Where two wait for each other's room, a replica stands
in on free room (an empty device, which ``transitionReserve`` keeps); only where there is none either, something is
removed before its replacement serves, so that the fewest requests are lost, those of the lowest priority first.
Every state on the way respects what a plan has to: percent, memory of old and new copies, clients, MIG placements,
isolation, host CPU, memory and pods.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from gpulet.model.device import Device
from gpulet.model.plan import Plan, Problem, Slot
from gpulet.model.steps import Durations, Step, StepKind
from gpulet.planner.detours import ATTEMPTS, LARGE, Way
from gpulet.planner.ground import Ground, bits_of
from gpulet.planner.packing import GpuKey, key_of
from gpulet.planner.rounds import Round, pending, settled

_DURATIONS = Durations()


def steps(current: Iterable[Slot], plan: Plan, problem: Problem, durations: Durations = _DURATIONS) -> tuple[Step, ...]:
    """From the replicas that exist to those of the plan. Pure; empty if nothing has to change.

    A model's required rate on the way is what is asked for, but no more than what is carried at the beginning, nor
    than the plan carries: only a fall below it counts as a loss. What exists of a model that the plan leaves out stays
    while nobody needs its room.
    """
    ground = Ground(current, plan, problem)
    rounds = _rounds(ground, durations)
    return tuple(_Writing(ground).steps(rounds))


def _rounds(ground: Ground, durations: Durations) -> list[Round]:
    rounds = settled(ground, ground.start)
    state = rounds[-1].after if rounds else ground.start
    while pending(ground, state):
        found = _next_group(ground, state, durations)
        # What is free then may help the others: the groups are asked for anew.
        found += settled(ground, found[-1].after)
        state = found[-1].after
        rounds += found
    return rounds


def _next_group(ground: Ground, state: int, durations: Durations) -> list[Round]:
    """Rounds that bring one group about: without any loss if one is found for which this goes."""
    apart = groups(ground, state)
    # What one group gives up may be room for another's stand-in: where something has to be lost, all are one question.
    everything = sum(apart)
    together = [everything] if everything.bit_count() <= LARGE else apart
    for attempt in ATTEMPTS:
        for group in together if attempt.may_lose else apart:
            if found := Way(ground, group, durations).find(state, attempt):
                return found
    return Way(ground, apart[0], durations).forced(state)


def groups(ground: Ground, state: int) -> list[int]:
    """Planned replicas that are still to come, in groups that have no GPU, full node or model in common."""
    leader: dict[object, object] = {}

    def find(x: object) -> object:
        while leader.setdefault(x, x) != x:
            x = leader[x]
        return x

    waiting = pending(ground, state)
    for i in bits_of(waiting | (state & ~ground.goal)):
        slot = ground.slots[i]
        for model in slot.models:
            leader[find(model)] = find(key_of(slot.device))
    for i in bits_of(waiting):
        if ground.host_is_full(state, i):
            node = ground.slots[i].device.node
            for key in [key for key in leader if isinstance(key, tuple) and key[0] == node]:
                leader[find(key)] = find(node)
    found: dict[object, int] = defaultdict(int)
    for i in bits_of(waiting):
        found[find(ground.slots[i].model)] |= 1 << i
    return sorted(found.values(), key=lambda bits: (bits.bit_count(), bits))


class _Writing:
    """Rounds as steps in stages."""

    def __init__(self, ground: Ground) -> None:
        self.ground = ground
        self.stage = 0
        self.written: list[Step] = []
        self.routed = {m: ground.routed(m, ground.start) for m in ground.of_model}

    def steps(self, rounds: list[Round]) -> list[Step]:
        for one in rounds:
            self._switch(one.between)
            leaving, coming = list(bits_of(one.remove)), list(bits_of(one.create))
            self._all("drain", leaving, {i: self._why_leaving(i, one) for i in leaving})
            self._all("delete", leaving, dict.fromkeys(leaving, "its requests have ended"))
            self._recut(coming)
            self._all("create", coming, {i: self._why_coming(i) for i in coming})
            self._all("wait", coming, dict.fromkeys(coming, "until it is loaded and warm"))
        if rounds:
            self._switch(rounds[-1].after)
        return self.written

    def _slots(self, bits: int) -> tuple[Slot, ...]:
        return tuple(self.ground.slots[i] for i in bits_of(bits))

    def _all(self, kind: StepKind, indices: list[int], why: dict[int, str]) -> None:
        self.stage += bool(indices)
        for i in indices:
            slot, planned = self.ground.slots[i], bool((self.ground.goal | self.ground.start) >> i & 1)
            self.written.append(Step(self.stage, kind, why[i], slot=slot, temporary=not planned))

    def _switch(self, state: int) -> None:
        """Traffic of all models whose routed replicas change, at once."""
        now = {m: self.ground.routed(m, state) for m in self.ground.of_model}
        changed = sorted(m for m, bits in now.items() if bits != self.routed.get(m, 0))
        self.stage += bool(changed)
        for model in changed:
            joining = now[model] & ~self.routed.get(model, 0)
            lacks = self.ground.lacking(model, state)
            why = f"{joining.bit_count()} replicas more serve" if joining else "the others carry the demand"
            if lacks:
                why = f"its room is needed: {lacks:.4g} requests/s are not carried from here on"
            elif not now[model]:
                why = "it is in no plan"
            step = Step(self.stage, "switch", why, model=model, routed=self._slots(now[model]))
            self.written.append(step)
        self.routed = now

    def _why_leaving(self, i: int, one: Round) -> str:
        ground, models = self.ground, self.ground.slots[i].models
        if all(m in ground.forgotten for m in models):
            return "its model is asked for no more"
        if any(ground.lacking(m, one.between) > 0 for m in models):
            return "there is no other room for what is planned in its place"
        if not any(m in ground.placed for m in models):
            return "its model does not fit, and its room is needed"
        if not (ground.start >> i) & 1:
            return "it only stood in"
        complete = all(not ground.goal_of[m] & ~one.between for m in models)
        return "replaced" if complete else "the other replicas carry the demand"

    def _why_coming(self, i: int) -> str:
        ground, slot = self.ground, self.ground.slots[i]
        if not ground.goal >> i & 1:
            return "stands in until its model's planned place is free"
        known = any(ground.start & ground.of_model[m] for m in slot.models)
        return "planned, beside what serves" if known else "planned"

    def _recut(self, coming: list[int]) -> None:
        """One step for each GPU whose present instances do not leave room for the planned ones."""
        needed: dict[GpuKey, list[str]] = defaultdict(list)
        for i in coming:
            if self.ground.recuts(i):
                device = self.ground.slots[i].device
                needed[key_of(device)].append(f"{device.profile}@{device.start}" if device.profile else "whole")
        self.stage += bool(needed)
        for key, names in sorted(needed.items()):
            reason = f"into {', '.join(sorted(names))} instead of what was there"
            self.written.append(Step(self.stage, "recut", reason, device=Device(*key)))
