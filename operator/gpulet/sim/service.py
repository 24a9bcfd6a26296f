"""How long a batch takes: from the points of a profile."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpulet.model.plan import Slot
from gpulet.model.profile import Profile, ProfilePoint

_Z99 = 2.3263478740408408
"""99 % quantile of the standard normal distribution."""


@dataclass(frozen=True)
class ServiceTimes:
    """Time of one batch by its size: lognormal around a mean."""

    mean_ms: tuple[float, ...]
    """Entry b - 1: a batch of b requests."""
    sigma: tuple[float, ...]
    """Standard deviation of the logarithm, by batch size; 0: always the mean."""

    @staticmethod
    def constant(mean_ms: Sequence[float]) -> ServiceTimes:
        return ServiceTimes(tuple(mean_ms), (0.0,) * len(mean_ms))

    @property
    def largest(self) -> int:
        return len(self.mean_ms)

    def slower(self, factor: float) -> ServiceTimes:
        return ServiceTimes(tuple(m * factor for m in self.mean_ms), self.sigma)

    def factors(self, chance: np.random.Generator, batches: int) -> NDArray[np.float64]:
        """Standard normal draws, one a batch, for ``time_ms``."""
        return chance.standard_normal(batches) if any(self.sigma) else np.zeros(batches)

    def time_ms(self, batch: int, normal: float) -> float:
        sigma = self.sigma[batch - 1]
        return self.mean_ms[batch - 1] * math.exp(sigma * normal - sigma * sigma / 2)


def of_points(points: Sequence[ProfilePoint], largest: int) -> ServiceTimes:
    """Linear between measured batches; a batch smaller than any measured one takes as long as that.

    ``points``: of one share and one number of instances, at least one. Mean and the ratio p99 / p50 are kept.
    """
    known = {p.batch: p for p in points}
    batches = sorted(known)
    wanted = np.arange(1, largest + 1)
    mean = np.interp(wanted, batches, [known[b].mean_us / 1000 for b in batches])
    spread = [max(0.0, math.log(known[b].p99_us / known[b].p50_us) / _Z99) for b in batches]
    return ServiceTimes(tuple(mean.tolist()), tuple(np.interp(wanted, batches, spread).tolist()))


def of_slot(profile: Profile, slot: Slot, product: str) -> ServiceTimes:
    """What the profile says of a planned share; a share between two measured ones counts as the lower one."""
    same = [
        p
        for p in profile.points
        if (p.product, p.mig, p.instances) == (product, slot.device.profile, slot.instances)
        and (p.mig is not None or p.compute_percent <= slot.compute_percent)
        and p.batch <= slot.batch
    ]
    if not same:
        raise ValueError(
            f"profile {profile.source or slot.model}: no point of {product} at or below {slot.compute_percent} % "
            f"and batch {slot.batch} with {slot.instances} instances: measure one"
        )
    percent = max(p.compute_percent for p in same if p.batch == slot.batch)
    return of_points([p for p in same if p.compute_percent == percent], slot.batch)
