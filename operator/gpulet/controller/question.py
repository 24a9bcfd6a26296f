"""All that a pass asks the planner, and the variants of the question in which something gives way. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from gpulet.api.policy import Policy
from gpulet.controller.observations import Observations
from gpulet.controller.profiles import Choice
from gpulet.controller.snapshot import frozen_gpulets, leaving_gpulets, problem
from gpulet.controller.world import Key, World, is_planned
from gpulet.model.plan import Problem, Refusal


@dataclass(frozen=True)
class Question:
    """One consistent view, and the planner's question about it."""

    world: World
    policy: Policy
    observations: Observations
    choices: Mapping[Key, Choice]
    rates_per_s: Mapping[Key, float]
    refusals: tuple[Refusal, ...] = ()

    @cached_property
    def leaving(self) -> frozenset[Key]:
        """Serving Gpulets that go as soon as their replacements serve."""
        return leaving_gpulets(self.world, self.choices, self.policy)

    @cached_property
    def frozen(self) -> frozenset[Key]:
        """Serving Gpulets that stay whatever the plan is, for a quota admits nothing in their place."""
        return frozen_gpulets(self.world, self.refusals, leaving=self.leaving)

    def problem(self, *, without: frozenset[Key] = frozenset(), leaving: frozenset[Key] | None = None) -> Problem:
        """The question as it stands, or with ``without`` gone and ``leaving`` (instead of our own) on its way out."""
        return problem(
            self.world,
            choices=self.choices,
            rates_per_s=self.rates_per_s,
            refusals=self.refusals,
            policy=self.policy,
            without=without,
            leaving=self.leaving if leaving is None else leaving,
        )

    def sacrifices(self) -> Iterator[frozenset[Key]]:
        """What may be planned as if gone, gentlest first: nothing; tuning and profiling; replicas on their way out."""
        working = frozenset(key for key, g in self.world.gpulets.items() if g.spec.models is None and is_planned(g))
        seen = set()
        for without in (frozenset(), working, self.leaving, working | self.leaving):
            if without not in seen:
                seen.add(without)
                yield without
