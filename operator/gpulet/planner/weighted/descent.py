"""One pattern per model, so that all slots together need few GPUs.

The cheapest pattern of each model is no plan: at the best prices most models have several, and taking the first piles
the demand onto one kind of slot. So one model at a time takes the pattern with which the GPUs needed, the maximum over
facets of the sum of slots, is least. Deterministic: fixed orders, a congruential sequence instead of chance.
"""

from __future__ import annotations

import numpy as np

from gpulet.planner.weighted.facets import facets_of, largest_facet
from gpulet.planner.weighted.market import Floats, Ints, Market
from gpulet.planner.weighted.patterns import Patterns
from gpulet.planner.weighted.prices import Prices

_PASSES = 6
_FACET_ROUNDS = 10
SLACKS = (0.02, 0.08)
"""GPUs (per price) that a candidate may cost more than the model's cheapest pattern: few candidates descend furthest in
large fleets, small ones need more."""
_EASE = 0.02
"""Weight of the facets below the largest, so that ties of the maximum ease them too."""


class Descent:
    def __init__(
        self,
        market: Market,
        patterns: Patterns,
        prices: Prices,
        extra: Floats | None = None,
        *,
        slack: float = SLACKS[0],
    ) -> None:
        self.market = market
        self.patterns = patterns
        self.extra = np.zeros(len(patterns.counts)) if extra is None else extra
        self.wide = market.widened(patterns.counts, patterns.model)
        cost = self.wide @ prices.slot + self.extra
        least = np.minimum.reduceat(cost, patterns.first[:-1])
        dearest = max(sort.price for sort in market.sorts)
        near = cost <= np.repeat(least, np.diff(patterns.first)) + slack * dearest
        self.candidates = [
            np.flatnonzero(near[a:b]) + a for a, b in zip(patterns.first[:-1], patterns.first[1:], strict=True)
        ]
        self.chosen = np.array(
            [a + int(np.argmin(cost[a:b])) for a, b in zip(patterns.first[:-1], patterns.first[1:], strict=True)]
        )
        self.rates = [market.price(block) + prices.rent[block.sort] for block in market.blocks]
        facets = [facets_of(block) for block in market.blocks]
        self.facets = [forms for forms, _ in facets]
        self.complete = all(complete for _, complete in facets)

    def run(self) -> Ints:
        """Models x kinds: replicas of each model."""
        for _ in range(_FACET_ROUNDS):
            self._descend()
            if self.complete or not self._found_facets():
                break
        replicas: Ints = self.patterns.counts[self.chosen]
        return replicas

    def _found_facets(self) -> bool:
        """Whether the slots chosen need more GPUs than the facets known so far say; the missing one is added."""
        wanted = self.wide[self.chosen].sum(axis=0)
        found = False
        for index, block in enumerate(self.market.blocks):
            slots = wanted[block.index]
            value, form = largest_facet(block, slots)
            if value > float((self.facets[index] @ slots).max()) + 1e-6:
                self.facets[index] = np.vstack([self.facets[index], form])
                found = True
        return found

    def _weighed(self) -> tuple[Floats, Ints]:
        """Patterns x facets of all blocks, priced, and where each block's facets begin."""
        parts = [
            self.wide[:, block.index] @ (forms.T * rate)
            for block, forms, rate in zip(self.market.blocks, self.facets, self.rates, strict=True)
        ]
        starts = np.cumsum([0] + [part.shape[1] for part in parts])[:-1]
        return np.concatenate(parts, axis=1), starts

    def _descend(self) -> None:
        weighed, starts = self._weighed()
        total = weighed[self.chosen].sum(axis=0)
        undecided = np.array([m for m, found in enumerate(self.candidates) if len(found) > 1], dtype=np.int64)
        single = len(starts) == 1
        for round_ in range(_PASSES):
            before = _needed(total, starts)
            ease = _EASE / (max(before, 1.0) * len(total))
            for model in _shuffled(undecided, round_):
                found = self.candidates[model]
                after = total - weighed[self.chosen[model]] + weighed[found]
                most = after.max(axis=1) if single else np.maximum.reduceat(after, starts, axis=1).sum(axis=1)
                best = int(np.argmin(most + ease * np.einsum("ij,ij->i", after, after) + self.extra[found]))
                self.chosen[model] = found[best]
                total = after[best]
            if before - _needed(total, starts) < 1e-9:
                break


def _needed(total: Floats, starts: Ints) -> float:
    return float(np.maximum.reduceat(total, starts).sum())


def _shuffled(models: Ints, round_: int) -> Ints:
    """Another fixed order in every round: multiplication by a large odd number modulo 2^32."""
    keys = ((models + 1) * 2_654_435_761 + round_ * 40_503) % 2**32
    keys = (keys * (2 * round_ + 1)) % 2**32
    return models[np.argsort(keys, kind="stable")]
