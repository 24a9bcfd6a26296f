"""Models for tests on the synthetic GPU: knees at 40, 60 and 100 %, whatever the batch."""

from benchmarks.baselines.surface import Service
from benchmarks.synthetic import Shape, made


def knee(name: str, *, fixed_ms: float, request_ms: float, at: float) -> Service:
    """L(b, p) = fixed + request x b / min(p, knee): beyond the knee a larger share is of no use."""
    return made(name, Shape(fixed_ms, request_ms, at, at, 0.5))


SMALL = knee("small", fixed_ms=2, request_ms=0.3, at=0.4)
MIDDLE = knee("middle", fixed_ms=3, request_ms=0.9, at=0.6)
LARGE = knee("large", fixed_ms=3, request_ms=1.2, at=1.0)
MODELS = (SMALL, MIDDLE, LARGE)
