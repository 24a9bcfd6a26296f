"""A GPU model with knees for tests: latency of batches over shares, written down, not measured."""

from benchmarks.baselines.surface import MPS, Service, service

BATCHES = (1, 2, 4, 8, 16, 32)


def knee(name: str, *, fixed_ms: float, request_ms: float, knee: float, objective_ms: float | None = None) -> Service:
    """L(b, p) = fixed + request x b / min(p, knee): beyond the knee a larger share is of no use.

    Without an objective it is twice the latency of a batch of 32 on the whole GPU, the convention of gpu-lets.
    """
    points = {p: {b: fixed_ms + request_ms * b / min(p / 100, knee) for b in BATCHES} for p in MPS.sizes}
    return service(name, objective_ms or 2 * points[100][32], points)


SMALL = knee("small", fixed_ms=2, request_ms=0.3, knee=0.4)
MIDDLE = knee("middle", fixed_ms=3, request_ms=0.9, knee=0.6)
LARGE = knee("large", fixed_ms=3, request_ms=1.2, knee=1.0)
MODELS = (SMALL, MIDDLE, LARGE)
