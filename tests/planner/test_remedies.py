"""The nearest change that an explanation names, made and planned again, makes the model fit."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from gpulet.model.demand import Demand
from gpulet.model.plan import Problem, Unplaced
from gpulet.planner import plan
from tests.planner.worlds import demand, gpu, node, point

BIG = demand("big", point(60), rate=20.0, priority=1)


def world(*demands: Demand, **changes: object) -> Problem:
    fields: dict[str, object] = {"gpus": (gpu(0),), "nodes": (node(),)}
    return Problem(demands=demands, **(fields | changes))  # type: ignore[arg-type]


def why_not(problem: Problem, name: str = "m") -> Unplaced | None:
    return next((u for u in plan(problem).unplaced if u.model.name == name), None)


def changed(problem: Problem, **changes: object) -> Problem:
    """The model ``m`` of the problem, changed."""
    demands = tuple(replace(d, **changes) if d.model.name == "m" else d for d in problem.demands)  # type: ignore[arg-type]
    return replace(problem, demands=demands)


def with_gpus(problem: Problem, number: int) -> Problem:
    more = tuple(gpu(len(problem.gpus) + i) for i in range(number))
    return replace(problem, gpus=(*problem.gpus, *more))


def first_number(pattern: str, message: str) -> float:
    found = re.search(pattern, message)
    assert found is not None, message
    return float(found[1])


def raise_the_objective(problem: Problem, message: str) -> Problem:
    """To exactly what the message says."""
    return changed(problem, latency_ms=first_number(r"raise the objective to ([\d.e+]+) ms", message))


def add_gpus(problem: Problem, message: str) -> Problem:
    return with_gpus(problem, int(first_number(r"needs (\d+) more GPU", message)))


def add_one_gpu(problem: Problem, message: str) -> Problem:
    assert "add a GPU" in message
    return with_gpus(problem, 1)


def widen_isolation(problem: Problem, message: str) -> Problem:
    assert "sharing.isolation to something wider than None" in message
    return changed(problem, isolation="Namespace")


def lower_host_cpu(problem: Problem, message: str) -> Problem:
    assert "lower podTemplate's cpu" in message
    return changed(problem, host_cpu_millicores=500)


def widen_products(problem: Problem, message: str) -> Problem:
    assert "widen spec.products" in message
    return changed(problem, products=None)


@pytest.mark.parametrize(
    ("reason", "problem", "remedy"),
    [
        ("ObjectiveInfeasible", world(demand("m", point(100, ms=33.37), rate=0.5, ms=5.0)), raise_the_objective),
        (
            "ObjectiveInfeasible",
            world(demand("m", point(50, ms=77.77, p99_ms=91.119), point(100, ms=41.234), rate=0.2, ms=5.0)),
            raise_the_objective,
        ),
        ("RateBeyondCluster", world(demand("m", point(100), rate=190.0)), add_gpus),
        ("NoRoom", world(BIG, demand("m", point(60), rate=20.0)), add_gpus),
        ("NoMemory", world(BIG, demand("m", point(40, memory_mib=81_000), rate=20.0)), add_one_gpu),
        (
            "MaxClients",
            world(BIG, demand("m", point(40, instances=4), rate=20.0), gpus=(gpu(0, clients=4),)),
            lambda problem, message: replace(problem, gpus=(*problem.gpus, gpu(1, clients=4))),
        ),
        ("Isolation", world(BIG, demand("m", point(40), rate=20.0, isolation="None")), widen_isolation),
        ("Isolation", world(BIG, demand("m", point(40), rate=20.0, isolation="None")), add_one_gpu),
        (
            "NoHostResources",
            world(
                replace(BIG, host_cpu_millicores=1000),
                demand("m", point(40), rate=20.0, host_cpu_millicores=1000),
                nodes=(node(cpu=1500),),
            ),
            lower_host_cpu,
        ),
        ("NoDevice", world(demand("m", point(40), rate=20.0, products=("NVIDIA-OTHER",))), widen_products),
    ],
)
def test_the_change_that_is_named_makes_it_fit(
    reason: str, problem: Problem, remedy: Callable[[Problem, str], Problem]
) -> None:
    refused = why_not(problem)
    assert refused is not None and refused.reason == reason, refused
    assert why_not(remedy(problem, refused.message)) is None, refused.message
