"""With whom a share may be on one whole GPU, as a choice of one pool per GPU.

A GPU's shares either all agree to anybody (pool ``ANY``), or all belong to one namespace (pool of that name). A model
that shares with nobody takes its GPU alone, in whatever pool.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpulet.model.demand import Demand, Isolation
from gpulet.model.plan import Usage
from gpulet.planner.packing import may_share

Pool = str
ANY: Pool = ""
"""No namespace has an empty name."""


def pools_of(demands: Iterable[Demand], usages: Iterable[Usage]) -> tuple[Pool, ...]:
    """The pools that are worth telling apart; one if everybody may share with everybody."""
    named = tuple(demands)
    bound = {d.model.namespace for d in named if d.isolation == "Namespace"}
    bound |= {u.namespace for u in usages if u.isolation == "Namespace" and u.device.profile is None}
    if not bound:
        return (ANY,)
    return (*((ANY,) if any(d.isolation == "Any" for d in named) else ()), *sorted(bound))


def pools_for(demand: Demand, pools: tuple[Pool, ...]) -> tuple[Pool, ...]:
    """The pools that a model may be in."""
    if demand.isolation == "None":
        return pools[:1]
    own = tuple(p for p in pools if p == demand.model.namespace)
    if demand.isolation == "Namespace":
        return own
    return (*(p for p in pools if p == ANY), *own)


def open_pools(tenants: Iterable[tuple[str, Isolation]], pools: tuple[Pool, ...]) -> tuple[Pool, ...]:
    """The pools that a GPU can still be in, given who is there already."""
    there = tuple(tenants)

    def agrees(pool: Pool) -> bool:
        isolation: Isolation = "Any" if pool == ANY else "Namespace"
        return all(may_share(pool, isolation, *tenant) for tenant in there)

    return tuple(pool for pool in pools if agrees(pool))
