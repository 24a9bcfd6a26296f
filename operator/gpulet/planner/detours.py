"""Where no planned replica fits beside those that are needed: stand-ins on free room, or the smallest loss.

A search over states in order of loss (Dijkstra), and among equal losses of what is still to be done. Its edges are
rounds: as far as it goes by itself, with one stand-in more, or with needed replicas removed before theirs serve.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from itertools import combinations, count

from gpulet.model.steps import Durations
from gpulet.planner.ground import Cost, Ground, bits_of
from gpulet.planner.packing import key_of
from gpulet.planner.rounds import Round, cost_of, give_way, next_round, obsolete, settled, spent
from gpulet.planner.stand_ins import copies, stand_ins

_MAX_BROKEN = 10
"""Of so many replicas in one's way every smallest sufficient set is looked at; of more, the one that loses least."""
LARGE = 20
"""Planned replicas of a group that is too large to look at every stand-in."""
_EPSILON = 1e-9
Work = tuple[int, int]


@dataclass(frozen=True)
class Attempt:
    """How far a search goes."""

    may_lose: bool
    """Needed replicas may be removed before theirs serve."""
    may_undo: bool
    """Planned replicas that came up on the way may make room again."""
    looks: int
    """Rounds that are tried."""


ATTEMPTS = (
    Attempt(may_lose=False, may_undo=False, looks=800),
    Attempt(may_lose=False, may_undo=True, looks=800),
    Attempt(may_lose=True, may_undo=True, looks=1000),
    Attempt(may_lose=True, may_undo=False, looks=1000),
)


@dataclass(frozen=True)
class _Node:
    state: int
    loss: Cost
    last: tuple[Round, ...] = ()
    parent: _Node | None = None

    def rounds(self) -> list[Round]:
        before = self.parent.rounds() if self.parent is not None else []
        return [*before, *self.last]


@dataclass(order=True)
class _Look:
    """A round that may be tried, with the least that all loses up to its end; or, with ``end``, one that was."""

    loss: Cost
    work: Work
    number: int
    node: _Node = field(compare=False)
    broken: int = field(compare=False, default=0)
    stand_in: int = field(compare=False, default=0)
    end: _Node | None = field(compare=False, default=None)
    others: tuple[int, ...] = field(compare=False, default=())
    """Sets that may be broken in the same round; they are looked at when this one was."""


class Way:
    """The search for one group of planned replicas that are to be brought about; others may be left for later."""

    def __init__(self, ground: Ground, group: int, durations: Durations) -> None:
        self.ground = ground
        self.group = group
        self.durations = durations
        self.looks: list[_Look] = []
        self.least: dict[int, Cost] = {}
        self.numbers = count()
        self.attempt = ATTEMPTS[0]
        self.wanted = group

    def find(self, state: int, attempt: Attempt) -> list[Round] | None:
        """Rounds after which all of the group exists, and what was there of the plan; None if none were found."""
        large = self.group.bit_count() > LARGE
        if large and (attempt.may_lose or attempt.may_undo):
            return None
        self.attempt = attempt
        self.wanted = self.group | (self.ground.goal & state)
        start = _Node(state, tuple(0.0 for _ in self.ground.levels))
        best = start
        self._expand(start)
        for _ in range(LARGE if large else attempt.looks):
            if not self.looks:
                break
            node = self._next()
            if node is None:
                continue
            if not self.wanted & ~node.state:
                return node.rounds()
            best = min(best, node, key=lambda n: self._work(n.state))
            self._expand(node)
        # A large group is brought about piece by piece.
        return best.rounds() if large and self._work(best.state)[0] < self._work(state)[0] else None

    def forced(self, state: int) -> list[Round]:
        """One more of the group's planned replicas, at the least loss that it alone asks for."""
        one = next_round(self.ground, state)
        if one.idle:
            one = next_round(self.ground, state, broken=self._cheapest(state))
        if one.idle:
            slot = self.ground.slots[next(bits_of(self.group & ~state))]
            raise ValueError(f"plan: the share of {slot.model} on {slot.device} does not fit: plan this problem anew")
        return [one]

    def _work(self, state: int) -> Work:
        """Planned replicas that are still to come, and obsolete ones that are still there."""
        return (self.wanted & ~state).bit_count(), obsolete(self.ground, state).bit_count()

    def _next(self) -> _Node | None:
        """The node of the look that loses least; None if that leads nowhere new, or loses more than it seemed to."""
        look = heapq.heappop(self.looks)
        end = look.end or self._tried(look)
        if end is None or not self._is_new(end):
            return None
        if look.end is None and _less(look.loss, end.loss):
            self._push(end, end.loss, end=end)
            return None
        self.least[end.state] = end.loss
        return end

    def _tried(self, look: _Look) -> _Node | None:
        node = look.node
        one = next_round(self.ground, node.state, broken=look.broken, stand_in=look.stand_in)
        for n, more in enumerate(look.others):
            broken = look.broken | more
            self._push(node, self._least_loss(node, broken), broken=broken, others=look.others[n + 1 :])
        if look.broken and not look.stand_in:
            room = node.state & ~one.remove
            for t in stand_ins(self.ground, room, look.broken | self._in_the_way(room)):
                self._push(node, look.loss, broken=look.broken, stand_in=1 << t)
        # What leaves without anybody coming could as well leave a round later.
        if one.idle or (look.broken and not one.create) or look.stand_in & ~one.create:
            return None
        # What then goes further at no loss is never wrong.
        last = (one, *settled(self.ground, one.after))
        return _Node(last[-1].after, _sum(node.loss, cost_of(self.ground, one, self.durations)), last, node)

    def _is_new(self, node: _Node) -> bool:
        return node.state not in self.least or _less(node.loss, self.least[node.state])

    def _push(
        self,
        node: _Node,
        loss: Cost,
        *,
        broken: int = 0,
        stand_in: int = 0,
        end: _Node | None = None,
        others: tuple[int, ...] = (),
    ) -> None:
        look = _Look(loss, self._work(node.state), next(self.numbers), node, broken, stand_in, end, others)
        heapq.heappush(self.looks, look)

    def _expand(self, node: _Node) -> None:
        if not next_round(self.ground, node.state).idle:
            self._push(node, self._least_loss(node, 0))
        for copied in self._ways_out(node.state):
            self._push(node, self._least_loss(node, 0), stand_in=copied)
        if self.group.bit_count() > LARGE:
            return
        blocking = self._in_the_way(node.state)
        again = self._planned_again(node.state) if self.attempt.may_undo else []
        for t in stand_ins(self.ground, node.state, blocking | sum(again)):
            self._push(node, self._least_loss(node, 0), stand_in=1 << t)
        ways = [*(self._breakable(node.state, blocking) if self.attempt.may_lose else ()), *again]
        if ways:
            for n, broken in enumerate(ways):
                self._push(node, self._least_loss(node, broken), broken=broken, others=tuple(ways[n + 1 :]))

    def _ways_out(self, state: int) -> list[int]:
        """For each planned replica that waits: copies elsewhere of all that is in its way. Often all it takes."""
        ground, found = self.ground, set()
        leaving = {i: give_way(ground, state, 0, i, at_a_loss=True) for i in bits_of(self.group & ~state)}
        for i in sorted(leaving, key=lambda i: (leaving[i].bit_count(), i))[:LARGE]:
            found.add(copies(ground, state, leaving[i], gpu=key_of(ground.slots[i].device)))
        return sorted(found - {0}, key=lambda bits: (bits.bit_count(), bits))

    def _least_loss(self, node: _Node, broken: int) -> Cost:
        """Somebody is created in the round, and what is broken leaves before."""
        rest = node.state & ~spent(self.ground, node.state) & ~broken
        seconds = self.durations.drain_s + self.durations.delete_s if rest != node.state else 0.0
        if broken or rest == node.state:
            seconds += self.durations.create_s + self.durations.wait_s
        return _sum(node.loss, tuple(per_s * seconds for per_s in self.ground.shortage(rest)))

    def _in_the_way(self, state: int) -> int:
        """Obsolete replicas on GPUs that the group waits for; on their nodes, if it is these that are full."""
        ground, found = self.ground, 0
        for i in bits_of(self.group & ~state):
            key = key_of(ground.slots[i].device)
            found |= ground.of_gpu[key]
            if ground.host_is_full(state, i):
                found |= sum(bits for other, bits in ground.of_gpu.items() if other[0] == key[0] and other != key)
        return found & obsolete(ground, state) & ~spent(ground, state)

    def _breakable(self, state: int, blocking: int) -> list[int]:
        """Smallest sets of needed replicas without which one of the group fits."""
        found: set[int] = set()
        for i in bits_of(self.group & ~state):
            same_node = self.ground.host_is_full(state, i)
            own = [o for o in bits_of(blocking) if self._blocks(o, i, same_node) and self._is_needed(o)]
            if len(own) > _MAX_BROKEN:
                found.add(give_way(self.ground, state, 0, i, at_a_loss=True))
                continue
            enough: list[int] = []
            for size in range(1, len(own) + 1):
                for chosen in combinations(own, size):
                    broken = sum(1 << o for o in chosen)
                    if not any(e & broken == e for e in enough) and self.ground.fits(state & ~broken, i):
                        enough.append(broken)
            found.update(enough)
        return sorted(found - {0})

    def _planned_again(self, state: int) -> list[int]:
        """Planned replicas of the group's GPUs that came up on the way: each may make room once more."""
        ground, gpus = self.ground, 0
        for i in bits_of(self.group & ~state):
            gpus |= ground.of_gpu[key_of(ground.slots[i].device)]
        return [1 << i for i in bits_of(gpus & state & ground.goal & ~ground.start)]

    def _blocks(self, o: int, i: int, same_node: bool) -> bool:
        old, new = self.ground.slots[o].device, self.ground.slots[i].device
        return key_of(old) == key_of(new) or (same_node and old.node == new.node)

    def _is_needed(self, o: int) -> bool:
        return any(self.ground.required[m] > 0 for m in self.ground.slots[o].models)

    def _cheapest(self, state: int) -> int:
        ways = [give_way(self.ground, state, 0, i, at_a_loss=True) for i in bits_of(self.group & ~state)]
        ways = [way for way in ways if way] or [obsolete(self.ground, state)]
        return min(ways, key=lambda way: (self.ground.shortage(state & ~way), way))


def _sum(a: Cost, b: Cost) -> Cost:
    return tuple(x + y for x, y in zip(a, b, strict=True))


def _less(a: Cost, b: Cost) -> bool:
    """Lexicographic: what a higher priority loses decides first."""
    for x, y in zip(a, b, strict=True):
        if abs(x - y) > _EPSILON * max(1.0, x, y):
            return x < y
    return False
