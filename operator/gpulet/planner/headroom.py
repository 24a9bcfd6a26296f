"""Room for the failure of a node: only as much is placed as still fits without the node that has most GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from gpulet.model.demand import Demand
from gpulet.model.plan import Plan, Problem, Unplaced

_ROOM = ("NoRoom", "RateBeyondCluster", "NoMemory", "MaxClients", "Isolation", "NoHostResources")
"""Reasons that say that others take the room: a model that can run on no other node is not left out."""


def with_headroom(problem: Problem, plan: Callable[[Problem], Plan]) -> Plan:
    """``plan``: without headroom."""
    lost = largest_node(problem)
    if lost is None:
        return _noted(plan(problem), "nodeFailureHeadroom: all GPUs are on one node, nothing is left when it fails")
    after = plan(without_node(problem, lost))
    carried = {p.model: p.sustainable_per_s for p in after.placed}
    short = {u.model for u in after.unplaced if u.reason in _ROOM}
    demands = tuple(
        replace(d, requests_per_s=min(d.requests_per_s, carried[d.model])) if d.model in short else d
        for d in problem.demands
        if d.model not in short or d.model in carried
    )
    found = plan(replace(problem, demands=demands))
    said = {u.model for u in found.unplaced}
    left = [_left_out(d, carried.get(d.model, 0.0), lost) for d in problem.demands if d.model in short - said]
    unplaced = tuple(sorted((*found.unplaced, *left), key=lambda u: u.model))
    return _noted(replace(found, unplaced=unplaced), f"room is kept for the failure of node {lost}")


def largest_node(problem: Problem) -> str | None:
    """The node with most GPUs; None if there is no other."""
    sizes = Counter(g.node for g in problem.gpus if g.schedulable)
    return min(sizes, key=lambda n: (-sizes[n], n)) if len(sizes) > 1 else None


def without_node(problem: Problem, node: str) -> Problem:
    return replace(
        problem,
        gpus=tuple(g for g in problem.gpus if g.node != node),
        current=tuple(s for s in problem.current if s.device.node != node),
    )


def _left_out(demand: Demand, fits_per_s: float, lost: str) -> Unplaced:
    message = (
        f"{demand.requests_per_s:.4g} requests/s (headroom included) do not fit any more when node {lost} fails: "
        f"room for {fits_per_s:.4g} is left then; add a GPU on another node, or plan without nodeFailureHeadroom"
    )
    return Unplaced(demand.model, "NodeFailureHeadroom", message)


def _noted(plan: Plan, note: str) -> Plan:
    return replace(plan, notes=(*plan.notes, note))
