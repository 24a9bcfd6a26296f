"""Who tunes which operator, and with how many trials. Pure and deterministic: each client computes all shards."""

from dataclasses import dataclass

LEAST_TRIALS = 4
"""Fewer candidates than this tell nothing about an operator."""


@dataclass(frozen=True, order=True)
class Work:
    """One operator of the model."""

    name: str
    flops: float
    """Of all its occurrences in the model."""
    index: int = 0
    """Where the caller finds it again."""


def in_order(works: list[Work], *, least_flops: float = 1000.0) -> list[Work]:
    """Heaviest first, then by name; operators without work worth a trial (reshape and the like) are dropped.

    The order of extraction follows a hash, so nothing may depend on it.
    """
    return sorted((w for w in works if w.flops > least_flops), key=lambda w: (-w.flops, w.name))


def allot(works: list[Work], trials: int) -> dict[str, int]:
    """``trials`` over the operators: a base for each, the rest by work (largest remainder). Sums to ``trials``."""
    if not works:
        return {}
    base = min(LEAST_TRIALS, trials // len(works))
    rest = trials - base * len(works)
    total = sum(w.flops for w in works)
    exact = {w.name: rest * w.flops / total for w in works}
    given = {name: int(value) for name, value in exact.items()}
    left = rest - sum(given.values())
    for w in sorted(works, key=lambda w: (given[w.name] - exact[w.name], w.name))[:left]:
        given[w.name] += 1
    return {w.name: base + given[w.name] for w in works}


def shards(works: list[Work], trials: dict[str, int], clients: int) -> list[list[Work]]:
    """Greedy: the next operator goes to the client with the fewest trials, then the fewest operators.

    Trials are what a client's time goes into: search, build and measurement are all per candidate.
    """
    parts: list[list[Work]] = [[] for _ in range(clients)]
    loads = [0] * clients
    for work in sorted(works, key=lambda w: (-trials[w.name], -w.flops, w.name)):
        client = min(range(clients), key=lambda c: (loads[c], len(parts[c]), c))
        parts[client].append(work)
        loads[client] += trials[work.name]
    return parts
