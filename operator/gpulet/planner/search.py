"""The cheapest packing of models that all have to fit, changing as little as that allows."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace

from gpulet.model.demand import ModelId
from gpulet.model.plan import BoundKind, Problem, Slot
from gpulet.planner import exact, program
from gpulet.planner.assign import Fleet, Ways, by_size, cost_of
from gpulet.planner.eligibility import Rules
from gpulet.planner.improve import align, consolidate, fresh, packing_of
from gpulet.planner.keep import continued, keep, standing
from gpulet.planner.packing import GpuKey, Packing, key_of
from gpulet.planner.realise import Places, realised
from gpulet.planner.throughput import Option

MOVE_PRICE = 0.02
"""GPUs that one replica's move may cost at most in a fleet too large for the exact program: 50 moves for a GPU."""
_EPSILON = 1e-6
_BOUND_TOLERANCE = 1e-4
EXACT_COVERS = (*program.COVERS, "host resources", "placements")


@dataclass(frozen=True)
class Found:
    """Slots of all models, and how good they are proven to be."""

    slots: tuple[Slot, ...]
    cost: float
    bound: float
    """No packing of these models costs less."""
    covers: tuple[str, ...] = program.COVERS
    kind: BoundKind = "proven"
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Nothing:
    """Not all models fit at once, or no way to do it was found."""

    proven: bool


class Search:
    """One search: a problem whose demands are exactly the models to be placed."""

    def __init__(self, problem: Problem, rules: Rules, ways: Ways) -> None:
        self.problem = problem
        self.rules = rules
        self.ways = ways
        self.fleet = Fleet.of(problem, rules)
        self.notes: tuple[str, ...] = ()

    def run(self) -> Found | Nothing:
        """Keep what exists if that is proven cheapest; else the exact program if it is small; else improve."""
        kept = self._kept()
        choice = program.choose(self.problem, self._empty(), self.fleet, self.ways)
        if not choice.feasible:
            return Nothing(proven=True)
        if not choice.options and self.ways:
            self.notes = ("the solver gave no answer within its limit: kept and placed by best fit",)
        bound = self._rounded(choice.bound)
        if kept is not None and cost_of(kept, self.fleet) <= bound + _EPSILON:
            return self._found(kept, bound)
        new = fresh(self.problem, self.rules, self.fleet, self.ways, choice)
        if exact.size_of(self.fleet, self.ways) <= exact.MAX_VARIABLES:
            if new is not None and cost_of(new, self.fleet) <= bound + _EPSILON:
                return self._with_fewest_moves(bound, bound, program.COVERS) or self._aligned(new, bound)
            answer = self._exact(kept, bound)
            if answer is not None:
                return answer
        return self._improved(kept, new, bound)

    def _empty(self) -> Packing:
        return Packing(self.problem, self.rules)

    def _found(self, packing: Packing, bound: float, covers: tuple[str, ...] = program.COVERS) -> Found:
        cost = cost_of(packing, self.fleet)
        return Found(packing.all_slots(), cost, min(bound, cost), covers, notes=self.notes)

    def _rounded(self, bound: float) -> float:
        """A bound of whole GPUs is a whole number."""
        if set(self.fleet.price.values()) <= {1.0}:
            return float(math.ceil(bound - _BOUND_TOLERANCE))
        return bound - _BOUND_TOLERANCE

    def _kept(self) -> Packing | None:
        """What exists, made whole by best fit; None if not all models fit so."""
        packing = self._empty()
        kept = keep(packing, self.problem, self.fleet)
        # Those that are complete first: nobody's growth takes their room.
        order = sorted(
            by_size(self.ways, self.fleet, self.ways),
            key=lambda m: m not in kept or len(packing.slots[m]) < kept[m].replicas,
        )
        return packing if all(continued(packing, self.fleet, self.ways, kept, m) for m in order) else None

    def _exact(self, kept: Packing | None, bound: float) -> Found | Nothing | None:
        """None: the program found nothing within its limit, or its answer does not hold on concrete devices."""
        least = exact.least_cost(self.problem, self._empty(), self.fleet, self.ways)
        if least.cost is None:
            return Nothing(proven=True) if least.proven else None
        bound = max(bound, self._rounded(least.bound))
        if kept is not None and cost_of(kept, self.fleet) <= least.cost + _EPSILON:
            return self._found(kept, bound, EXACT_COVERS)
        moved = self._with_fewest_moves(least.cost, bound, EXACT_COVERS)
        if moved is not None:
            return moved
        packing = realised(self._empty(), least.replicas, {})
        return self._aligned(packing, bound, EXACT_COVERS) if packing is not None else None

    def _with_fewest_moves(self, cost: float, bound: float, covers: tuple[str, ...]) -> Found | None:
        """At a cost that is known to be possible, as many existing replicas as can stay."""
        if not self.problem.current:
            return None
        places, ways = self._standing()
        counts = {place: len(slots) for place, slots in places.items()}
        most = exact.most_kept(self.problem, self._empty(), self.fleet, ways, cost=cost, standing=counts)
        packing = realised(self._empty(), most.replicas, places) if most.cost is not None else None
        if packing is None or cost_of(packing, self.fleet) > cost + _EPSILON:
            return None
        return self._found(packing, bound, covers)

    def _aligned(self, packing: Packing, bound: float, covers: tuple[str, ...] = program.COVERS) -> Found:
        """A packing that owes nothing to what exists, with interchangeable GPUs swapped towards it."""
        slots = align(packing.all_slots(), self.problem, self.fleet)
        return self._found(packing_of(self.problem, self.rules, slots), bound, covers)

    def _standing(self) -> tuple[Places, Ways]:
        """Existing slots that may stay, by where and what they are, and the options with theirs among them."""
        places: dict[tuple[ModelId, Option, GpuKey], list[Slot]] = defaultdict(list)
        ways = {model: list(options) for model, options in self.ways.items()}
        for model, groups in standing(self._empty(), self.problem, self.fleet).items():
            for option, slots in groups.items():
                if option not in ways[model]:
                    ways[model].append(option)
                for slot in slots:
                    places[model, option, key_of(slot.device)].append(slot)
        return places, ways

    def _improved(self, kept: Packing | None, new: Packing | None, bound: float) -> Found | Nothing:
        """The better of what exists, with GPUs emptied one by one, and of a fresh start."""
        problem, rules, fleet, ways = self.problem, self.rules, self.fleet, self.ways
        best = consolidate(kept, problem, rules, fleet, ways, enough=bound) if kept is not None else None
        if new is not None and (best is None or cost_of(best, fleet) > bound + _EPSILON):
            new = consolidate(new, problem, rules, fleet, ways, enough=bound)
            if best is None:
                return self._aligned(new, bound)
            if cost_of(new, fleet) < cost_of(best, fleet) - _EPSILON:
                return self._worth_moving(best, new, bound)
        return self._found(best, bound) if best is not None else Nothing(proven=False)

    def _worth_moving(self, kept: Packing, new: Packing, bound: float) -> Found:
        """A fresh start saves GPUs, but moves nearly everybody: the kept plan stays unless it saves enough for that.

        Counted against the kept plan, not what exists: asked again in the planned world, the answer is the same.
        """
        stays = self._found(kept, bound)
        slots = align(new.all_slots(), replace(self.problem, current=stays.slots), self.fleet)
        moves = len(set(stays.slots) - set(slots))
        saved = stays.cost - cost_of(new, self.fleet)
        if saved >= MOVE_PRICE * moves:
            return self._found(packing_of(self.problem, self.rules, slots), bound)
        note = f"moving {moves} more replicas would save {saved:g} in GPUs; a move counts {MOVE_PRICE:g}"
        return replace(stays, notes=(*stays.notes, note))
