"""GPUs needed for a demand of slots, as the maximum of linear forms: vertices of {v >= 0 : no column is worth over 1}.

For MIG there are few, and all are known beforehand (four for an A100). For fine grids of shares they are found as they
are needed: the linear program at a demand gives the one that is largest there.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations
from math import comb

import numpy as np

from gpulet.planner.cuts import inequalities
from gpulet.planner.solver import Program
from gpulet.planner.weighted.market import Block, Floats
from gpulet.planner.weighted.multisets import best_multiset

_MOST_SYSTEMS = 20_000
_COLUMN_ROUNDS = 40
_EPSILON = 1e-9


def facets_of(block: Block) -> tuple[Floats, bool]:
    """Facets x kinds of the block (and its memory and clients), and whether these are all there are."""
    kinds, columns = len(block.shares), tuple(sorted(block.columns))
    if block.complete and not block.extra and comb(len(columns) + kinds, kinds) <= _MOST_SYSTEMS:
        return np.array(_vertices(columns, kinds)), True
    known = [block.weights / max(float(np.dot(c, block.weights)) for c in columns)]
    if block.pool is not None:
        known = [np.array([form[p] for p in block.percents]) for form in inequalities(block.percents, block.capacity)]
    if block.extra:
        more = len(block.extra)
        known = [np.concatenate([form, np.zeros(more)]) for form in known]
        known += list(np.eye(kinds + more)[kinds:])
    return np.array(known), False


@lru_cache(maxsize=256)
def _vertices(columns: tuple[tuple[int, ...], ...], kinds: int) -> tuple[tuple[float, ...], ...]:
    """All undominated vertices of {v >= 0 : column . v <= 1}."""
    sides = np.vstack([np.array(columns, dtype=float), -np.eye(kinds)])
    limits = np.concatenate([np.ones(len(columns)), np.zeros(kinds)])
    chosen = np.array(list(combinations(range(len(sides)), kinds)))
    systems = sides[chosen]
    regular = np.abs(np.linalg.det(systems)) > _EPSILON
    points = np.linalg.solve(systems[regular], limits[chosen[regular]][..., None])[..., 0]
    inside = (points @ sides.T <= limits + _EPSILON).all(axis=1)
    _, first = np.unique(np.round(points[inside], 9), axis=0, return_index=True)
    distinct = points[inside][first]
    covered = [any((other >= v - 1e-12).all() and (other > v + 1e-12).any() for other in distinct) for v in distinct]
    return tuple(tuple(float(x) for x in v) for v, gone in zip(distinct, covered, strict=True) if not gone)


def _dearest(block: Block, values: Floats) -> tuple[float, tuple[int, ...]]:
    kinds = len(block.shares)
    worth, column = best_multiset(block.percents, block.capacity, values[:kinds])
    return worth + float(values[kinds:].sum()), column


def largest_facet(block: Block, wanted: Floats) -> tuple[float, Floats]:
    """GPUs that the wanted slots need at least (the linear program's value), and the form that says so."""
    for _ in range(_COLUMN_ROUNDS):
        program = Program()
        form = [program.variable(cost=-float(n), high=1.0, integer=False) for n in wanted]
        for column in block.columns:
            terms = {form[k]: float(n) for k, n in enumerate(column) if n}
            program.row(terms | dict.fromkeys(form[len(column) :], 1.0), high=1.0)
        values = np.maximum(program.relaxed(), 0.0)
        if block.complete:
            break
        worth, column = _dearest(block, values)
        if worth <= 1 + _EPSILON:
            break
        if column in block.columns:
            values = values / worth
            break
        block.columns.append(column)
    else:
        values = values / _dearest(block, values)[0]
    return float(values @ wanted), values
