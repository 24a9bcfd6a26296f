"""What percentile of latency a loaded replica has: the exact chain of its queue.

Triton runs with queue delay 0: an instance that becomes free takes what waits, at most a batch. Arrivals are Poisson
(a random part of a Poisson stream is one). A batch of b takes s(b) = fixed + (1 - fixed) b / B of a full one's time: a
loaded replica therefore runs batches as large as its load asks for, not full ones.

The number waiting when the server becomes free is a Markov chain (bulk service of 1 to B; Bailey 1954, here with times
by batch). Its stationary distribution gives, for every size n of the queue and every number j of arrivals during the
batch taken from it, the share of requests that see this; each of them waits for a uniform part of the running batch,
for the full batches before its own, then for its own.

Approximations, to the safe side or below the noise of a run of 20,000 requests: several instances with batches of one
wait like one that is as many times faster, then take their own time (with larger batches: ``_OUT_OF_STEP``); a line
through the full batch bounds s(b) from above; spread of the times multiplies the whole latency; which of the arrivals
of one batch time overflow into a later batch is taken from their mean places.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_LOADS = (0.003, 0.01, 0.02, 0.04, 0.08, 0.14, 0.2, 0.3, 0.4, 0.5, 0.6, 0.68, 0.75, 0.8, 0.85, 0.89, 0.92)
"""Utilisations that are computed; between them the logarithms are linear. No replica is loaded beyond the last."""
_STEP = 0.025
_LONGEST = 16.0
"""Latency in full batches: resolution, and the longest that is told apart."""
_PLANNED_LATE = 0.7
"""Part of the allowed late requests that is planned for at low load; the part falls with the load (``_allowed``)."""
_SIGMAS = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8)
_OUT_OF_STEP = 1.15
"""Simulated percentiles of several instances with batches are at most this many times the worse bound (0.83 to 0.95 of
it in the worst of 180 cases), mostly below it."""
_Z99 = 2.3263478740408408


def max_load(batch: int, instances: int, fixed: float, spread: float, patience: float, quantile: float) -> float:
    """Largest utilisation (0..1) at which ``quantile`` of the requests take at most ``patience`` full batch times.

    ``fixed``: part of a full batch's time that a batch of none would take (0..1); ``spread``: p99 / mean of batch
    times. 0: not even an idle replica keeps that. Pure; caches only save time.
    """
    index = min(int(patience / _STEP + 1e-9), len(_grid()) - 1)
    return float(_curve(batch, instances, _up(fixed), _sigma(spread), quantile)[index])


def latency(batch: int, instances: int, fixed: float, spread: float, load: float, quantile: float) -> float:
    """That quantile of latency at a utilisation, in full batch times; ``_LONGEST`` also if the replica is overloaded.

    The inverse of ``max_load``: what it allows is never predicted to be later.
    """
    curve = _curve(batch, instances, _up(fixed), _sigma(spread), quantile)
    index = int(np.searchsorted(curve, load * (1 - 1e-9)))
    return float(_grid()[min(index, len(curve) - 1)])


@lru_cache(maxsize=4096)
def turn_load(batch: int, quantile: float) -> float:
    """Largest part of a batch that the mean arrivals of a duty cycle may fill: ``quantile`` go with their first turn.

    Once a cycle at most ``batch`` of what waits is taken; the rest r is carried over: r' = max(0, r + Poisson - batch).
    """
    low, high = 0.0, _LOADS[-1]
    for _ in range(20):
        middle = (low + high) / 2
        allowed = float(_allowed(quantile, np.array([middle]))[0])
        low, high = (middle, high) if _carried(batch, middle) <= allowed else (low, middle)
    return low


def _carried(batch: int, load: float) -> float:
    """Fraction of the requests that have to let their first turn pass."""
    chance = _poisson(np.array([load * batch]))[0]
    arrived, size = np.arange(len(chance)), _tail(load)
    left = np.zeros(size)
    left[0] = 1.0
    for _ in range(2000):
        waiting = np.convolve(left, chance)
        after = np.zeros(size)
        carried = waiting[batch + 1 :][: size - 1]
        after[1 : 1 + len(carried)] = carried
        after[0] = waiting[: batch + 1].sum()
        after /= after.sum()
        change, left = np.abs(after - left).sum(), after
        if change < 1e-9:
            break
    later = np.clip(np.arange(size)[:, None] + arrived[None, :] - batch, 0, arrived[None, :])
    return float(left @ later @ chance) / (load * batch)


def _up(fixed: float) -> float:
    """Rounded up to tenths: few chains are computed, each to the safe side."""
    return min(1.0, math.ceil(fixed * 5 - 1e-6) / 5)


def _sigma(spread: float) -> float:
    """Of the logarithm of lognormal batch times with this p99 / mean = exp(z sigma - sigma^2 / 2), rounded up."""
    sigma = _Z99 - math.sqrt(max(0.0, _Z99**2 - 2 * math.log(max(1.0, spread))))
    return next((s for s in _SIGMAS if s >= sigma - 1e-3), _SIGMAS[-1])


@lru_cache(maxsize=1)
def _grid() -> Floats:
    return np.arange(0.0, _LONGEST + _STEP / 2, _STEP)


@lru_cache(maxsize=4096)
def _curve(batch: int, instances: int, fixed: float, sigma: float, quantile: float) -> Floats:
    """Largest utilisation by latency (``_grid``)."""
    late = _late(batch, instances, fixed)
    if sigma:
        late = _spread(late, sigma)
    loads = np.array(_LOADS)
    beyond = np.log(np.maximum(np.maximum.accumulate(late, axis=0), 1e-12)) - np.log(_allowed(quantile, loads))[:, None]
    return np.maximum.accumulate(_crossings(beyond, np.log(loads)))


def _allowed(quantile: float, loads: Floats) -> Floats:
    """Late requests that are planned for: fewer than the objective allows, so that a window of 20,000 keeps it too.

    The closer to saturation, the fewer and longer are the jams in such a window, and the more weigh spread and error.
    """
    return (1 - quantile) * _PLANNED_LATE * (1 - loads**3)


def _crossings(beyond: Floats, log_load: Floats) -> Floats:
    """Per column the load at which a logarithm that rises with it passes 0; 0 if it is above from the start."""
    above = np.argmax(beyond > 0, axis=0)
    column = np.arange(beyond.shape[1])
    before = np.maximum(above - 1, 0)
    low, high = beyond[before, column], beyond[above, column]
    part = np.where(high > low, -low / np.where(high > low, high - low, 1.0), 0.0)
    load = np.exp(log_load[before] + part * (log_load[above] - log_load[before]))
    found: Floats = np.where(beyond[0] > 0, 0.0, np.where(beyond[-1] <= 0, _LOADS[-1], load))
    return found


def _spread(late: Floats, sigma: float) -> Floats:
    """Latency times a lognormal factor of mean 1, by its 64 equally likely values."""
    normal = _normal_quantiles()
    grid = _grid()
    result = np.zeros_like(late)
    for factor in np.exp(sigma * normal - sigma * sigma / 2):
        place = np.minimum(grid / factor / _STEP, len(grid) - 1.0)
        result += late[:, np.floor(place).astype(int)]
    return result / len(normal)


@lru_cache(maxsize=1)
def _normal_quantiles() -> Floats:
    """Midpoints of 64 equally likely parts of the standard normal distribution."""
    x = np.linspace(-5, 5, 4001)
    density = np.exp(-x * x / 2)
    below = np.cumsum(density) / density.sum()
    return np.interp((np.arange(64) + 0.5) / 64, below, x)


@lru_cache(maxsize=1024)
def _late(batch: int, instances: int, fixed: float) -> Floats:
    """Fraction of requests later than each latency of ``_grid``, one row a load of ``_LOADS``."""
    if instances == 1 or batch == 1:
        return _chain(batch, instances, fixed)
    # Instances that take what waits run in step or apart, as it comes: the worse of both, and what simulation adds.
    worse = np.maximum(_chain(batch, instances, fixed), _chain(batch * instances, 1, fixed))
    return worse[:, np.floor(_grid() / _OUT_OF_STEP / _STEP + 1e-9).astype(int)]


@lru_cache(maxsize=1024)
def _chain(batch: int, instances: int, fixed: float) -> Floats:
    rows, share = [], np.zeros(0)
    for load in _LOADS:
        row, share = _late_at(batch, instances, fixed, load, share)
        rows.append(row)
    return np.array(rows)


def _late_at(batch: int, instances: int, fixed: float, load: float, start: Floats) -> tuple[Floats, Floats]:
    """One load. Time unit: a full batch of the server that is ``instances`` times faster. ``start``: a first guess."""
    times: Floats = fixed + (1 - fixed) * np.arange(1, batch + 1, dtype=np.float64) / batch
    rate = load * batch
    chance = _poisson(rate * times)
    share = _stationary(batch, chance, load, start)
    cells: list[tuple[Floats, Floats, Floats]] = [
        # The queue fits one batch: nobody is left over.
        (share[1:batch, None] * chance[:-1], np.zeros((batch - 1, 1)), times[:-1, None]),
        (share[batch:, None] * chance[-1], np.arange(len(share) - batch, dtype=np.float64)[:, None], times[-1:, None]),
    ]
    within, total = np.zeros(len(_grid())), 0.0
    for weight, left, spent in cells:
        if weight.size:
            part, requests = _within(weight, left, spent, times, rate, instances)
            within, total = within + part, total + requests
    # Who finds the replica idle starts a batch of one at once.
    idle = float(share[1:batch] @ chance[:-1, 0] + share[batch] * chance[-1, 0])
    within += idle * (_grid() >= times[0] - 1e-9)
    return np.clip(1 - within / (total + idle), 0.0, 1.0), share


def _poisson(means: Floats) -> Floats:
    """One row a mean: probabilities of 0, 1, 2, ... events."""
    top = means[-1]
    j = np.arange(int(top + 8 * math.sqrt(top) + 12))
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(j[1:]))])
    chance: Floats = np.exp(j * np.log(means)[:, None] - means[:, None] - log_factorial)
    return chance


def _tail(load: float) -> int:
    """Length of the queue beyond a batch that is told apart: exp(-decay n) with load (exp(decay) - 1) = decay."""
    decay = 2 * (1 - load)
    for _ in range(20):
        decay = math.log1p(decay / load)
    return int(16 / decay) + 8


def _stationary(batch: int, chance: Floats, load: float, start: Floats) -> Floats:
    """Distribution of the number waiting when a batch starts. ``chance``: arrivals in a batch of 1, 2, ... requests."""
    size = batch + max(chance.shape[1], _tail(load))
    return _solved(batch, chance, size) if size <= _DENSE else _repeated(batch, chance, size, start)


_DENSE = 320


def _solved(batch: int, chance: Floats, size: int) -> Floats:
    """By the balance of all states; arrivals beyond the last state are left out."""
    wide = np.zeros((batch + 1, size))
    wide[1:, : chance.shape[1]] = chance[:, :size]
    step = np.zeros((size, size))
    step[1 : batch + 1] = wide[1:]
    for n in range(batch + 1, size):
        step[n, n - batch :] = wide[batch, : size - n + batch]
    step[:, 1] += step[:, 0]  # an idle server waits for one request
    balance = step[1:, 1:].T - np.eye(size - 1)
    balance[-1] = 1.0
    ones = np.zeros(size - 1)
    ones[-1] = 1.0
    share: Floats = np.concatenate([[0.0], np.maximum(np.linalg.solve(balance, ones), 0.0)])
    share /= share.sum()
    return share


def _repeated(batch: int, chance: Floats, size: int, start: Floats) -> Floats:
    """By repeated steps from a first guess: large batches forget it at once."""
    share = np.zeros(size)
    share[1] = 1.0
    if len(start):
        share[: len(start)] = start[:size]
        share /= share.sum()
    for _ in range(2000):
        after = np.zeros(size)
        carried = np.convolve(share[batch:], chance[-1])[:size]
        after[: len(carried)] = carried
        after[: chance.shape[1]] += share[1:batch] @ chance[:-1]
        after[1] += after[0]
        after[0] = 0.0
        after /= after.sum()
        change = np.abs(after - share).sum()
        share = after
        if change < 1e-7:
            break
    return share


def _within(
    weight: Floats, left: Floats, spent: Floats, times: Floats, rate: float, instances: int
) -> tuple[Floats, float]:
    """Requests that arrive during these batches: how many take at most each latency, and how many there are.

    ``weight``: probability of (queue, arrivals j); ``left``: requests that the batch leaves waiting; ``spent``: its
    time.
    """
    batch = len(times)
    keep = weight.max(axis=1) > 1e-10
    weight, left = weight[keep], left[keep]
    spent = spent[keep] if len(spent) > 1 else spent
    arrived = np.arange(weight.shape[1], dtype=float)[None, :]
    total = float((weight * arrived).sum())
    within = np.zeros(len(_grid()))
    for more in range((weight.shape[1] - 1) // batch + 2):
        passed = left // batch + more
        first = np.clip(passed * batch - left, 0, arrived)
        last = np.clip((passed + 1) * batch - left, 0, arrived)
        cell = (last > first) & (weight > 1e-12)
        number, behind = (last - first)[cell], np.broadcast_to(passed, weight.shape)[cell]
        took = np.broadcast_to(spent, weight.shape)[cell]
        every = np.broadcast_to(arrived, weight.shape)[cell]
        own = np.broadcast_to(left, weight.shape)[cell] + every - behind * batch + rate * behind
        own_ms = times[np.clip(np.ceil(own), 1, batch).astype(int) - 1]
        after = behind + instances * own_ms
        early, late = first[cell] / every, last[cell] / every
        low, high = after + took * (1 - late), after + took * (1 - early)
        within += _uniform(low / instances, high / instances, (weight[cell] * number))
    return within, total


def _uniform(low: Floats, high: Floats, mass: Floats) -> Floats:
    """Sum of uniform distributions over [low, high], cumulated at the points of the grid."""
    grid = _grid()
    density = mass / (high - low)
    result = np.zeros(len(grid))
    for edge, sign in ((low, 1.0), (high, -1.0)):
        index = np.minimum(np.ceil(edge / _STEP).astype(int), len(grid))
        weights = np.cumsum(np.bincount(index, density, len(grid) + 1)[:-1])
        moments = np.cumsum(np.bincount(index, density * edge, len(grid) + 1)[:-1])
        result += sign * (grid * weights - moments)
    return result
