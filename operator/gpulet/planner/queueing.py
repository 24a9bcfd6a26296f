"""How far a share may be loaded before requests queue too long.

Triton runs with queue delay 0: an instance that becomes free takes what waits, at most a full batch. A replica with
``capacity`` = batch x instances is then a bulk server: per batch time it can take ``capacity`` requests, and a Poisson
number arrives, of mean load x capacity. What does not fit into the next batch is carried over; the carried requests X
are the maximum of a random walk, so that, with m further batches that may pass before a request's own,

    P(X > m capacity)  <=  sum over n >= 1 of P(Poisson(n load capacity) > (m + n) capacity)

(the walk's steps are independent; the union bound over its length n). A Poisson tail is bounded by its first term and
a geometric series. A request waits at most for the running batch, then m further ones, then its own.
"""

from functools import lru_cache

import numpy as np

MAX_SPARE_BATCHES = 8
"""Further waiting is not planned for: a share that queues for longer is close to unstable."""
_MAX_LOAD = 0.95
_STEPS = 40


@lru_cache(maxsize=4096)
def max_load(capacity: int, spare_batches: int, quantile: float) -> float:
    """Largest utilisation (0..1) at which a request passes over at most ``spare_batches`` full batches.

    ``quantile``: with which probability, such as 0.99. Pure; the cache only saves time.
    """
    low, high = 0.0, _MAX_LOAD
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if _overflow(middle * capacity, capacity, spare_batches) <= 1 - quantile:
            low = middle
        else:
            high = middle
    return low


def spare_batches_at(load: float, capacity: int, quantile: float) -> int | None:
    """Full batches that a request has to let pass at this load; None if more than are planned for."""
    for spare in range(MAX_SPARE_BATCHES + 1):
        if load <= max_load(capacity, spare, quantile) * (1 + 1e-9):
            return spare
    return None


def _overflow(arrivals: float, capacity: int, spare_batches: int) -> float:
    """Upper bound of P(X > spare_batches x capacity); ``arrivals``: mean number per batch time."""
    if arrivals <= 0:
        return 0.0
    n = np.arange(1, 4000 // capacity + 64, dtype=float)
    mean = n * arrivals
    k = (n + spare_batches) * capacity + 1
    log_factorial = k * np.log(k) - k + 0.5 * np.log(2 * np.pi * k) + 1 / (12 * k)
    log_first = k * np.log(mean) - mean - log_factorial
    return float(np.sum(np.exp(np.minimum(log_first, 0.0)) * (k + 1) / (k + 1 - mean)))
