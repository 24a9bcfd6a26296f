"""How much slower a replica is beside others on one GPU: shares divide compute, not the caches and the memory.

Three models behind one interface:

- ``Margin``: a constant of policy, whoever the neighbours are.
- ``Linear``: gpu-lets (arXiv 2109.01611, ATC'22): slow-down = c1 l2_me + c2 l2_you + c3 dram_me + c4 dram_you + c5,
  at least 1, utilisations of a solo run on the whole GPU scaled by the share; of several neighbours the worst counts.
- ``Analytic``: iGniter (arXiv 2211.01713), in its form relative to a solo run: the active part of the latency grows by
  alpha times the neighbours' L2 demand, the rest (scheduling) by delta for every neighbour. Its frequency term is left
  out: a GPU at its power limit is a matter of its health.

``fitted`` chooses per product by cross-validation among what the co-run points of profiles support. A fit never
predicts less than the data asked for: the 95 % quantile of its errors is added. The published coefficients do not
transfer to other GPUs (papers.md 2.7), so none are built in.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gpulet.model.profile import CoRun, Resident

Floats = NDArray[np.float64]

LEAST_POINTS = 10
"""Fewer co-run points of a product say too little."""
_FOLDS = 5
_SAFE = 0.95


class Interference(Protocol):
    def slowdown(self, victim: Resident, others: Sequence[Resident]) -> float:
        """Factor (at least 1) on the latency of the victim's batches; 1 without neighbours."""
        ...


@dataclass(frozen=True)
class Margin:
    """The same for everybody."""

    margin: float

    def slowdown(self, victim: Resident, others: Sequence[Resident]) -> float:
        return 1 + self.margin if others else 1.0


@dataclass(frozen=True)
class Linear:
    coefficients: tuple[float, float, float, float, float]
    """Of l2 me, l2 you, dram me, dram you, and a constant."""
    safety: float = 0.0
    """Added: a quantile of the fit's errors."""

    def slowdown(self, victim: Resident, others: Sequence[Resident]) -> float:
        found = [float(np.dot(self.coefficients, _linear_terms(victim, [other]))) for other in others]
        return max(1.0, max(found) + self.safety) if found else 1.0


@dataclass(frozen=True)
class Analytic:
    alpha: float
    """Growth of the active part for an L2 demand of all of the GPU."""
    delta: float
    """Growth of the rest for each neighbour."""
    safety: float = 0.0

    def slowdown(self, victim: Resident, others: Sequence[Resident]) -> float:
        if not others:
            return 1.0
        cache, waiting = _analytic_terms(victim, others)
        return max(1.0, 1 + self.alpha * cache + self.delta * waiting + self.safety)


def _linear_terms(victim: Resident, others: Sequence[Resident]) -> list[float]:
    """Of several neighbours the one that uses most."""
    me, you = victim.compute_percent / 100, max(others, key=lambda o: (o.l2 + o.dram) * o.compute_percent)
    part = you.compute_percent / 100
    return [victim.l2 * me, you.l2 * part, victim.dram * me, you.dram * part, 1.0]


def _analytic_terms(victim: Resident, others: Sequence[Resident]) -> tuple[float, float]:
    demand = sum(other.l2 * other.compute_percent / 100 for other in others)
    return victim.active * demand, (1 - victim.active) * len(others)


@dataclass(frozen=True)
class Fit:
    """What the co-run points of one product say."""

    model: Interference
    points: int
    error_p50: float
    """Absolute error of the slow-down on points that were not fitted."""
    error_p90: float


@dataclass(frozen=True)
class Fitted:
    """The best model per product; the policy's margin where nothing is known of the product or of somebody there."""

    fits: Mapping[str, Fit]
    margin: Margin

    def slowdown(self, victim: Resident, others: Sequence[Resident]) -> float:
        fit = self.fits.get(victim.product)
        if fit is None or not all(resident.known for resident in (victim, *others)):
            return self.margin.slowdown(victim, others)
        return fit.model.slowdown(victim, others)


def fitted(co_runs: Iterable[CoRun], margin: float) -> Fitted:
    """``margin``: of the policy, for what no data speak of. Order does not matter, doubles count once."""
    by_product: dict[str, set[CoRun]] = defaultdict(set)
    for point in co_runs:
        if all(resident.known for resident in (point.victim, *point.others)):
            by_product[point.victim.product].add(point)
    fits = {}
    for product, points in sorted(by_product.items()):
        if len(points) >= LEAST_POINTS:
            fits[product] = _best(sorted(points, key=repr))
    return Fitted(fits, Margin(margin))


def _best(points: list[CoRun]) -> Fit:
    """The model with the smaller cross-validated error; the errors are those of points held out."""
    candidates = [(_held_out(points, kind), kind) for kind in (_fit_linear, _fit_analytic)]
    errors, kind = min(candidates, key=lambda pair: float(np.mean(np.abs(pair[0]))))
    sizes = np.abs(errors)
    safety = max(0.0, float(np.quantile(errors, _SAFE)))
    return Fit(kind(points, safety), len(points), float(np.quantile(sizes, 0.5)), float(np.quantile(sizes, 0.9)))


class _Kind(Protocol):
    def __call__(self, points: Sequence[CoRun], safety: float) -> Interference: ...


def _held_out(points: list[CoRun], kind: _Kind) -> Floats:
    """Measured minus predicted, each point by a fit to the other folds."""
    errors = np.empty(len(points))
    for fold in range(_FOLDS):
        model = kind([p for i, p in enumerate(points) if i % _FOLDS != fold], 0.0)
        for i in range(fold, len(points), _FOLDS):
            errors[i] = points[i].slowdown - model.slowdown(points[i].victim, points[i].others)
    return errors


def _fit_linear(points: Sequence[CoRun], safety: float) -> Linear:
    terms = np.array([_linear_terms(p.victim, p.others) for p in points])
    found = np.linalg.lstsq(terms, np.array([p.slowdown for p in points]), rcond=None)[0].tolist()
    return Linear((found[0], found[1], found[2], found[3], found[4]), safety)


def _fit_analytic(points: Sequence[CoRun], safety: float) -> Analytic:
    """Both effects only ever slow down: a negative one is left out and the other fitted alone."""
    terms = np.array([_analytic_terms(p.victim, p.others) for p in points])
    grown = np.array([p.slowdown - 1 for p in points])
    alpha, delta = np.linalg.lstsq(terms, grown, rcond=None)[0].tolist()
    if alpha < 0 or delta < 0:
        alone = [max(0.0, float(t @ grown) / max(float(t @ t), 1e-12)) for t in terms.T]
        alpha, delta = (alone[0], 0.0) if delta < 0 else (0.0, alone[1])
    return Analytic(alpha, delta, safety)
