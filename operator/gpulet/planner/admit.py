"""Who is left out when not all models fit: priority decides, then who is served already, then the name.

A model whose rate goes beyond what is left gets as many replicas as there is room for, after all models of its own
priority that fit in full.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby

from gpulet.model.demand import Demand, ModelId
from gpulet.model.plan import Problem, Slot
from gpulet.planner.assign import Fleet, Ways, add_replicas
from gpulet.planner.eligibility import Rules
from gpulet.planner.improve import packing_of
from gpulet.planner.keep import continued, standing
from gpulet.planner.packing import Packing
from gpulet.planner.search import Found, Search
from gpulet.planner.throughput import Option, options_of

_FAILED_SEARCHES = 6
"""How often a whole search may fail to fit one more model; afterwards best fit alone decides."""


@dataclass
class Admitted:
    """The models that fit together."""

    demands: dict[ModelId, Demand] = field(default_factory=dict)
    """In full, or with their rate cut to what fits."""
    cut_per_s: dict[ModelId, float] = field(default_factory=dict)
    """Rate that fits, of every model that does not fit in full; 0: none of it."""
    slots: tuple[Slot, ...] = ()
    """One way to place them."""


def admit(problem: Problem, rules: Rules, ways: Ways) -> Admitted:
    return _Admission(problem, rules, ways).run()


class _Admission:
    def __init__(self, problem: Problem, rules: Rules, ways: Ways) -> None:
        self.problem = problem
        self.rules = rules
        self.ways = ways
        self.fleet = Fleet.of(problem, rules)
        self.packing = Packing(problem, rules)
        self.standing = standing(self.packing, problem, self.fleet)
        self.admitted = Admitted()
        self.searches = _FAILED_SEARCHES

    def run(self) -> Admitted:
        order = sorted(self.problem.demands, key=lambda d: (-d.priority, not self._is_served(d.model), d.model))
        for _, level in groupby(order, key=lambda d: d.priority):
            beyond = [demand for demand in level if not self._in_full(demand)]
            for demand in beyond:
                self._in_part(demand)
        self.admitted.slots = self.packing.all_slots()
        return self.admitted

    def _is_served(self, model: ModelId) -> bool:
        """Whether what exists carries the model's full rate: such a model is not displaced by another's growth."""
        return any(len(slots) >= option.replicas for option, slots in self.standing[model].items())

    def _in_full(self, demand: Demand) -> bool:
        mark = self.packing.mark()
        if self._by_best_fit(demand.model) or self._by_search(demand, mark):
            self.admitted.demands[demand.model] = demand
            return True
        return False

    def _by_best_fit(self, model: ModelId) -> bool:
        mark = self.packing.mark()
        kept: dict[ModelId, Option] = {}
        if groups := self.standing[model]:
            option = max(groups, key=lambda o: (len(groups[o]), o))
            if self._add_standing(model, option):
                kept[model] = option
        if continued(self.packing, self.fleet, self.ways, kept, model):
            return True
        self.packing.back_to(mark)
        return False

    def _add_standing(self, model: ModelId, option: Option) -> int:
        for slot in self.standing[model].get(option, ()):
            if len(self.packing.slots[model]) < option.replicas and self.packing.fits(slot):
                self.packing.add(slot)
        return len(self.packing.slots[model])

    def _by_search(self, demand: Demand, mark: int) -> bool:
        if not self.searches:
            return False
        demands = (*self.admitted.demands.values(), demand)
        ways: Mapping[ModelId, tuple[Option, ...]] = {d.model: tuple(self.ways[d.model]) for d in demands}
        found = Search(replace(self.problem, demands=demands), self.rules, ways).run()
        if isinstance(found, Found):
            self.packing = packing_of(self.problem, self.rules, found.slots)
            return True
        self.packing.back_to(mark)
        self.searches -= 1
        return False

    def _in_part(self, demand: Demand) -> None:
        """As many replicas as there is room for, of the option that then carries most; what exists is preferred."""
        model, mark = demand.model, self.packing.mark()
        best: tuple[float, Option] | None = None
        for option in (*self.standing[model], *self.ways[model]):
            self._add_standing(model, option)
            carried = add_replicas(self.packing, self.fleet, model, option) * option.replica_per_s
            self.packing.back_to(mark)
            if carried > 0 and (best is None or carried > best[0] * (1 + 1e-9)):
                best = carried, option
        self.admitted.cut_per_s[model] = min(best[0], demand.requests_per_s) if best else 0.0
        if best is not None:
            self._add_standing(model, best[1])
            add_replicas(self.packing, self.fleet, model, best[1])
            self.admitted.demands[model] = replace(demand, requests_per_s=self.admitted.cut_per_s[model])
            self.ways = {**self.ways, model: options_of(self.admitted.demands[model], self.problem.policy)}
