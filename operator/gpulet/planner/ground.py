"""What stands between the present shares and the planned ones: which replicas exist, what they carry, what fits.

A state of the way is a set of existing replicas, as the bits of one integer (``Ground.slots`` by index).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

from gpulet.model.demand import Demand, ModelId
from gpulet.model.device import Device, Gpu
from gpulet.model.plan import Plan, Problem, Slot
from gpulet.model.profile import Profile
from gpulet.planner.assign import Fleet
from gpulet.planner.eligibility import Rules
from gpulet.planner.keep import option_of_slot
from gpulet.planner.layouts import collide
from gpulet.planner.packing import GpuKey, Packing, key_of, share_millicores, slot_order

Cost = tuple[float, ...]
"""Requests, or requests per second, that are not carried, by priority: the highest first."""
_EPSILON = 1e-6


def bits_of(mask: int) -> Iterator[int]:
    """Indices of the bits that are set, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


class Ground:
    """The same for every state of one transition; only ``packing`` stands in one state at a time (``go_to``)."""

    def __init__(self, current: Iterable[Slot], plan: Plan, problem: Problem) -> None:
        self.problem = problem
        present = sorted(set(current), key=slot_order)
        demands = {d.model: d for d in problem.demands}
        for model in (m for slot in present for m in slot.models):
            demands.setdefault(model, _forgotten(model))
        self.demands = demands
        rules = Rules.of(problem)
        asked = replace(problem, demands=tuple(demands[m] for m in sorted(demands)))
        self.packing = Packing(asked, rules)
        self.fleet = Fleet.of(asked, rules)
        self._state = 0
        self.slots: list[Slot] = []
        self._index: dict[Slot, int] = {}
        self.of_model: dict[ModelId, int] = defaultdict(int)
        """All replicas of a model that may exist in some state."""
        self.of_gpu: dict[GpuKey, int] = defaultdict(int)
        self._rates: dict[tuple[ModelId, int], float] = {}
        self._planned_per_s = {
            (p.model, slot): per_s for p in plan.placed for slot, per_s in zip(p.slots, p.slot_per_s, strict=False)
        }
        self._best: dict[tuple[ModelId, int], int] = {}
        self._lacks: dict[tuple[ModelId, int], float] = {}
        self._number = Counter(model for slot in present for model in slot.models)
        self.start = self._mask(s for s in present if self._stands(s))
        self.goal = self._mask(sorted(plan.slots, key=slot_order))
        self.placed = frozenset(p.model for p in plan.placed)
        self.forgotten = frozenset(demands) - {d.model for d in problem.demands}
        self.goal_of = {m: self.goal & bits for m, bits in self.of_model.items()}
        self.levels = tuple(sorted({demands[m].priority for m in self.of_model}, reverse=True))
        self.required = {m: self._required(m) for m in self.of_model}
        self._cut = self._present_cut()

    def _stands(self, slot: Slot) -> bool:
        """A replica on a GPU or placement that is no longer offered has gone with it."""
        room = self.packing.rooms.get(key_of(slot.device))
        return room is not None and (slot.device.profile is None or self.packing.placement(slot.device) is not None)

    def _mask(self, slots: Iterable[Slot]) -> int:
        return sum(1 << self.index(slot) for slot in slots)

    def index(self, slot: Slot) -> int:
        """The bit of a replica; one that was never heard of gets the next."""
        if slot not in self._index:
            self._index[slot] = len(self.slots)
            self.slots.append(slot)
            for model in slot.models:
                self._rates[model, self._index[slot]] = self._rate_per_s(model, slot)
                self.of_model[model] |= 1 << self._index[slot]
            self.of_gpu[key_of(slot.device)] |= 1 << self._index[slot]
        return self._index[slot]

    def _rate_per_s(self, model: ModelId, slot: Slot) -> float:
        """What a replica sustains. One of which the profile knows nothing carries its even part of the demand."""
        if (model, slot) in self._planned_per_s:
            return self._planned_per_s[model, slot]
        turn = next((t for t in slot.turns if t.model == model), None)
        if turn is not None and slot.cycle_us:
            return turn.batch * 1e6 / slot.cycle_us
        demand = self.demands[model]
        as_built = replace(demand, artifact=slot.artifact, fixed_batch=None)
        product = self.packing.rooms[key_of(slot.device)].gpu.product if self._stands(slot) else ""
        option = option_of_slot(slot, as_built, product, self.problem.policy)
        return option.replica_per_s if option else demand.requests_per_s / max(1, self._number[model])

    def _required(self, model: ModelId) -> float:
        """The rate that must be carried on the way: asked for, carried now, and carried in the end."""
        if model not in self.placed:
            return 0.0
        bits = self.of_model[model]
        wanted = self.demands[model].requests_per_s
        return min(wanted, self.capacity(model, self.start & bits), self.capacity(model, self.goal & bits))

    def routed(self, model: ModelId, state: int) -> int:
        """The planned replicas once all exist; before, of those that exist the ones which carry most."""
        bits = self.of_model[model] & state
        if (model, bits) not in self._best:
            self._best[model, bits] = self._most(model, bits)
        return self._best[model, bits]

    def _most(self, model: ModelId, bits: int) -> int:
        goal = self.goal & self.of_model[model]
        if goal and bits & goal == goal:
            return goal
        if self.problem.policy.split == "weighted":
            return bits
        best, chosen, carried = 0, 0, 0.0
        fastest_first = sorted(bits_of(bits), key=lambda i: (-self._rates[model, i], not goal >> i & 1, i))
        for number, i in enumerate(fastest_first, 1):
            chosen |= 1 << i
            if number * self._rates[model, i] >= carried - _EPSILON:
                best, carried = chosen, number * self._rates[model, i]
        return best

    def capacity(self, model: ModelId, state: int) -> float:
        """Requests per second: an even split loads each routed replica like the weakest of them."""
        rates = [self._rates[model, i] for i in bits_of(self.routed(model, state))]
        return sum(rates) if self.problem.policy.split == "weighted" else len(rates) * min(rates, default=0.0)

    def lacking(self, model: ModelId, state: int) -> float:
        """Requests per second of a model that nobody carries."""
        bits = self.of_model[model] & state
        if (model, bits) not in self._lacks:
            lack = self.required[model] - self.capacity(model, bits)
            self._lacks[model, bits] = lack if lack > _EPSILON * max(1.0, self.required[model]) else 0.0
        return self._lacks[model, bits]

    def lost(self, state: int, i: int) -> float:
        """Requests per second that are no longer carried without a replica."""
        rest, lost = state & ~(1 << i), 0.0
        for model in self.slots[i].models:
            lost += self.lacking(model, rest) - self.lacking(model, state)
        return lost

    def priority(self, i: int) -> int:
        """The highest of the models that a replica serves."""
        return max(self.demands[m].priority for m in self.slots[i].models)

    def shortage(self, state: int) -> Cost:
        """Requests per second that nobody carries."""
        lacks = dict.fromkeys(self.levels, 0.0)
        for model in self.required:
            lacks[self.demands[model].priority] += self.lacking(model, state)
        return tuple(lacks.values())

    def go_to(self, state: int) -> None:
        """Let ``packing`` stand in this state; every state that is asked for must be one that fits."""
        for i in bits_of(self._state & ~state):
            self.packing.remove(self.slots[i])
        for i in bits_of(state & ~self._state):
            self.packing.add(self.slots[i])
        self._state = state

    def fits(self, state: int, i: int) -> bool:
        """Whether a replica can be created beside those of a state."""
        self.go_to(state)
        return self.packing.fits(self.slots[i])

    def host_is_full(self, state: int, i: int) -> bool:
        """Whether a replica's node has no CPU, memory or pod left for it."""
        self.go_to(state)
        slot, gpu = self.slots[i], self.gpu_of(i)
        demand, host = self.demands[slot.model], self.packing.hosts.get(gpu.node)
        if host is None:
            return False
        share = share_millicores(gpu, self.packing.placement(slot.device), slot.compute_percent)
        cpu = share if gpu.simulated_millicores else demand.host_cpu_millicores
        return cpu > host.cpu_millicores or demand.host_memory_mib > host.memory_mib or host.pods < 1

    def _present_cut(self) -> dict[GpuKey, list[Slot]]:
        cut: dict[GpuKey, list[Slot]] = defaultdict(list)
        for i in bits_of(self.start):
            cut[key_of(self.slots[i].device)].append(self.slots[i])
        return cut

    def recuts(self, i: int) -> bool:
        """Whether a replica's GPU has to be cut otherwise than now: an instance destroyed, or the mode changed."""
        device = self.slots[i].device
        return any(s.device != device and self._excludes(s.device, device) for s in self._cut.get(key_of(device), ()))

    def _excludes(self, old: Device, new: Device) -> bool:
        before, after = self.packing.placement(old), self.packing.placement(new)
        return before is None or after is None or collide(before, after)

    def gpu_of(self, i: int) -> Gpu:
        return self.packing.rooms[key_of(self.slots[i].device)].gpu


def _forgotten(model: ModelId) -> Demand:
    """A model that is no longer asked for, but whose replicas are still there."""
    return Demand(model, 0.0, 1.0, 99, Profile(()))
