"""The loop: snapshot, plan, check again, act, wait. Level-triggered; no pass depends on an earlier one having ended."""

import asyncio
import logging
import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from gpulet.api import names
from gpulet.api.policy import Policy
from gpulet.controller.cache import Cache
from gpulet.controller.decide import Pass, decide, scene_of
from gpulet.controller.demand import rate_to_plan
from gpulet.controller.execute import Executor
from gpulet.controller.held import HeldInventory
from gpulet.controller.observations import Observations
from gpulet.controller.observed import rate_per_s
from gpulet.controller.profiles import choices_of
from gpulet.controller.question import Question
from gpulet.controller.read import Reader
from gpulet.controller.refusals import Refusals
from gpulet.controller.scraper import Scraper
from gpulet.controller.transition import steps
from gpulet.controller.world import Key, World
from gpulet.metrics.exported import Exported
from gpulet.model.plan import Plan, Problem
from gpulet.planner import plan as make_plan
from gpulet.status.conditions import find

log = logging.getLogger("gpulet.loop")

# Several events in a row (an apply of many files) are one pass.
_SETTLE_S = 0.3
# A plan is made for a fresh snapshot at most so often; a cluster that changes faster is looked at again next pass.
_TRIES = 3
_REMEMBERED = 8
_FIRST_RETRY_S = 0.5


@dataclass
class Loop:
    """One per process, run by the leader alone."""

    cache: Cache
    executor: Executor
    scraper: Scraper
    exported: Exported
    leading: bool = False
    last_pass_s: float = field(default_factory=time.monotonic)
    """When the last pass was completed, for the probe."""
    period_s: float = Policy().period_seconds
    """The longest time between two passes, by the policy in force."""
    _failures_in_a_row: int = 0
    _plans: dict[Problem, Plan] = field(default_factory=dict)
    _unrouted_since_s: dict[Key, float] = field(default_factory=dict)
    _refusals: Refusals | None = None
    _rates_per_s: dict[str, float] = field(default_factory=dict)
    """Planned last, by a model's uid: status shows them rounded and held back, and serves after a restart."""
    _inventory: HeldInventory = field(default_factory=HeldInventory)
    _reader: Reader = field(default_factory=Reader)

    async def run(self) -> None:
        """Never returns: its end is the operator's end."""
        self.leading, self.last_pass_s = True, time.monotonic()
        await self.cache.synced()
        while True:
            policy = await self._policy()
            started = time.monotonic()
            try:
                await self.pass_once(policy)
            except Exception:  # a bug must not stop what serves; the probe fails if it goes on
                log.exception("a pass failed; the next one decides anew")
                await asyncio.sleep(policy.period_seconds)
                continue
            self.last_pass_s = time.monotonic()
            self.exported.pass_seconds.observe(self.last_pass_s - started)
            await self.cache.changed(timeout_s=self._patience_s(policy.period_seconds))
            await asyncio.sleep(_SETTLE_S)

    async def _policy(self) -> Policy:
        """The policy in force. Waits for one that can be read, and says meanwhile what is wrong with it."""
        while (policy := self.cache.policy()) is None:
            self.cache.clear_changed()
            await self.executor.carry_out(self.cache.policy_faults(), self.cache, progress=self._alive)
            await self.cache.changed(timeout_s=self.period_s)
        self.period_s = policy.period_seconds
        return policy

    async def pass_once(self, policy: Policy) -> None:
        """Decide on what is seen now, and do it."""
        self.cache.clear_changed()
        known = await self._plan(policy)
        actions = decide(known, now=datetime.now(UTC).replace(microsecond=0)) + self.cache.policy_faults()
        failed = await self.executor.carry_out(actions, self.cache, progress=self._alive)
        self._failures_in_a_row = self._failures_in_a_row + 1 if failed else 0
        self._export(known)

    def _alive(self) -> None:
        """A pass with a thousand writes is no stopped one."""
        self.last_pass_s = time.monotonic()

    def _patience_s(self, period_s: float) -> float:
        """How long to wait for an event: what failed for a passing reason is tried again soon, then less and less."""
        if not self._failures_in_a_row:
            return period_s
        return min(period_s, float(_FIRST_RETRY_S * 2 ** min(self._failures_in_a_row - 1, 16)))

    def _export(self, known: Pass) -> None:
        plan = known.plan
        self.exported.plan(gpus=plan.gpus, lower_bound=plan.lower_bound, kind=plan.bound_kind)
        self.exported.shares(
            {
                (key[0], key[1], g.spec.device.node, g.spec.device.gpu): g.spec.compute_percent
                for key, g in known.world.gpulets.items()
            }
        )
        met = {key: find(m.status.conditions, "ObjectiveMet") for key, m in known.world.models.items()}
        self.exported.objectives({k: c.status == "True" for k, c in met.items() if c and c.status != "Unknown"})

    async def _plan(self, policy: Policy) -> Pass:
        """A plan that still answers the question that a fresh snapshot asks."""
        asked = self._question(policy)
        for _ in range(_TRIES):
            known = await self._gentlest(asked)
            fresh = self._question(policy)
            if fresh.problem() == asked.problem():
                return known
            asked = fresh
        return known

    async def _gentlest(self, asked: Question) -> Pass:
        """The plan that harms least among those that place most.

        Tuning and profiling are asked to yield, and served replicas to go before their replacements come, only
        where this lets more models be served.
        """
        best: Pass | None = None
        for without in asked.sacrifices():
            known = await self._solve(asked, asked.problem(without=without))
            if best is None or len(known.plan.unplaced) < len(best.plan.unplaced):
                best = known
            if not best.plan.unplaced:
                break
        assert best is not None
        return await self._beside(asked, best)

    async def _beside(self, asked: Question, known: Pass) -> Pass:
        """If new shares do not fit beside those they replace: a plan that puts them elsewhere, if there is one."""
        scene = scene_of(known)
        if not steps(scene).waiting:
            return known
        replaced = frozenset(scene.serving - scene.desired.keys()) | asked.leaving
        other = await self._solve(asked, asked.problem(leaving=replaced))
        left_out = {u.model for u in known.plan.unplaced}
        # Not as many, but the same: who is left out has been decided by priority.
        if any(u.model not in left_out for u in other.plan.unplaced) or steps(scene_of(other)).waiting:
            return known
        return other

    async def _solve(self, asked: Question, question: Problem) -> Pass:
        """The same question is not thought over twice."""
        plan = self._plans.get(question)
        if plan is None:
            plan = await asyncio.to_thread(make_plan, question)
            self._plans = dict(list(self._plans.items())[-_REMEMBERED:]) | {question: plan}
        return Pass(
            asked.world,
            asked.policy,
            question,
            plan,
            asked.choices,
            asked.rates_per_s,
            asked.observations,
            unrouted_for_s=self._unrouted_for_s(asked.world),
            refused={r.model: r.reason for r in question.refusals},
            frozen=asked.frozen,
            names_taken=self.executor.names_taken,
            refused_children=self.executor.refused_children,
        )

    def _question(self, policy: Policy) -> Question:
        seen_now = self._reader.read(self.cache.objects())
        now_s = time.monotonic()
        world = replace(seen_now, slices=self._inventory.observe(seen_now.slices, seen_now.nodes, now_s=now_s))
        observations = self.scraper.observations()
        choices = choices_of(world)
        rates = {key: self._rate(world, key, observations, policy) for key in world.models}
        self._rates_per_s = {model.metadata.uid: rates[key] for key, model in world.models.items()}
        if self._refusals is None:
            self._refusals = Refusals(policy.unusable_after_seconds)
        self._refusals.unusable_after_s = policy.unusable_after_seconds
        for model, message in self.executor.take_refusals():
            self._refusals.mark(model, None, message, now_s=now_s)
        refusals = self._refusals.observe(world, now_s=now_s)
        return Question(world, policy, observations, choices, rates, refusals)

    def _rate(self, world: World, key: Key, observations: Observations, policy: Policy) -> float:
        model = world.models[key]
        gpulets = world.gpulets_of(names.LABEL_MODEL, *key)
        shown = model.status.rate.planned if model.status.rate else None
        previous = self._rates_per_s.get(model.metadata.uid, shown)
        observed = rate_per_s(gpulets, observations)
        return rate_to_plan(model, observed_per_s=observed, previous_per_s=previous, policy=policy)

    def _unrouted_for_s(self, world: World) -> dict[Key, float]:
        """Since when each obsolete pod has been seen out of its Service."""
        now_s = time.monotonic()
        unrouted = {
            key
            for key, pod in world.pods.items()
            if (pod["metadata"].get("labels") or {}).get(names.LABEL_ROUTED) == "false" and key in world.gpulets
        }
        self._unrouted_since_s = {key: self._unrouted_since_s.get(key, now_s) for key in unrouted}
        # A Gpulet without a pod has no traffic to drain.
        podless = {key: float("inf") for key in world.gpulets.keys() - world.pods.keys()}
        return podless | {key: now_s - since for key, since in self._unrouted_since_s.items()}
