"""Rounds of a transition: what leaves goes first, then what is to come is created and waited for.

All that a round removes leaves together, and all that it creates comes up together, so that a round's length depends
on the kinds of its steps alone. Nobody of what a round creates carries anything before the round ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpulet.model.steps import Durations
from gpulet.planner.ground import Cost, Ground, bits_of
from gpulet.planner.packing import key_of


@dataclass(frozen=True)
class Round:
    before: int
    remove: int
    create: int

    @property
    def between(self) -> int:
        """Who carries the traffic from the round's beginning to its end."""
        return self.before & ~self.remove

    @property
    def after(self) -> int:
        return self.between | self.create

    @property
    def idle(self) -> bool:
        return not (self.remove or self.create)


def cost_of(ground: Ground, one: Round, durations: Durations) -> Cost:
    """Requests that are not carried during a round."""
    seconds = (durations.drain_s + durations.delete_s) if one.remove else 0.0
    if one.create:
        seconds += durations.create_s + durations.wait_s
        seconds += durations.recut_s if any(ground.recuts(i) for i in bits_of(one.create)) else 0.0
    return tuple(per_s * seconds for per_s in ground.shortage(one.between))


def pending(ground: Ground, state: int) -> int:
    """Planned replicas that do not exist."""
    return ground.goal & ~state


def obsolete(ground: Ground, state: int) -> int:
    """Replicas that are in no plan: old ones, and those that only stand in."""
    return state & ~ground.goal


def spent(ground: Ground, state: int) -> int:
    """Obsolete replicas whose model is complete without them, or is asked for no more."""
    return sum(1 << i for i in bits_of(obsolete(ground, state)) if _is_spent(ground, state, i))


def _is_spent(ground: Ground, state: int, i: int) -> bool:
    return all(
        model in ground.forgotten or (model in ground.placed and not ground.goal_of[model] & ~state)
        for model in ground.slots[i].models
    )


def next_round(ground: Ground, state: int, *, broken: int = 0, stand_in: int = 0) -> Round:
    """The round that goes as far as possible without a further loss.

    ``broken``: replicas to be removed although they are needed, or planned. ``stand_in``: a replica outside the plan
    that is created before all others.
    """
    remove = spent(ground, state) | broken
    create = 0
    for i in bits_of(stand_in):
        if ground.fits((state & ~remove) | create, i):
            create |= 1 << i
    for i in _in_turn(ground, pending(ground, state) & ~broken):
        beside = (state & ~remove) | create
        if ground.fits(beside, i):
            create |= 1 << i
        elif way := give_way(ground, state & ~remove, create, i):
            remove |= way
            create |= 1 << i
    return Round(state, remove, create)


def _in_turn(ground: Ground, bits: int) -> list[int]:
    def turn(i: int) -> tuple[int, int, int]:
        return (-ground.priority(i), -ground.slots[i].compute_percent, i)

    return sorted(bits_of(bits), key=turn)


def give_way(ground: Ground, state: int, create: int, i: int, *, at_a_loss: bool = False) -> int:
    """Obsolete replicas without which replica ``i`` fits beside ``create`` and the rest; 0 if there are none.

    ``at_a_loss``: those that are needed count too, those that cost least first.
    """
    gone = 0
    for o in _in_the_way(ground, state, i, at_a_loss=at_a_loss):
        if not at_a_loss and ground.lost(state & ~gone, o) > 0:
            continue
        gone |= 1 << o
        if ground.fits((state & ~gone) | create, i):
            return _needed(ground, state, create, i, gone)
    return 0


def _in_the_way(ground: Ground, state: int, i: int, *, at_a_loss: bool) -> list[int]:
    """Obsolete replicas on the GPU, then on the node, in the order in which they are best given up."""
    old = obsolete(ground, state)
    gpu = ground.of_gpu[key_of(ground.slots[i].device)] & old
    node, others = ground.slots[i].device.node, []
    if ground.host_is_full(state, i):
        others = [o for o in bits_of(old & ~gpu) if ground.slots[o].device.node == node]

    def in_order(bits: Iterable[int]) -> list[int]:
        lost = {o: ground.lost(state, o) for o in bits}
        may_go = [o for o in lost if at_a_loss or lost[o] <= 0]
        return sorted(
            may_go,
            key=lambda o: (ground.priority(o) if lost[o] else -(10**9), lost[o], -ground.slots[o].compute_percent, o),
        )

    return [*in_order(bits_of(gpu)), *in_order(others)]


def _needed(ground: Ground, state: int, create: int, i: int, gone: int) -> int:
    """Of what was to go, only what has to: the most precious are given back first."""
    for o in reversed([o for o in _in_the_way(ground, state, i, at_a_loss=True) if gone >> o & 1]):
        back = gone & ~(1 << o)
        beside = (state & ~back) | create
        if back and ground.fits(beside, i):
            gone = back
    return gone


def settled(ground: Ground, state: int) -> list[Round]:
    """Rounds without any loss until none goes further by itself."""
    rounds: list[Round] = []
    while not (one := next_round(ground, state)).idle and not any(ground.shortage(one.between)):
        rounds.append(one)
        state = one.after
    return rounds
