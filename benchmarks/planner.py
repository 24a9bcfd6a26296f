"""GPUs the planner needs on ParvaGPU's published profiles (SC'24), beside its own counts and the mixed optimum.

    python benchmarks/planner.py --data <folder with parvagpu/> [--sizes 11,22,50]

The data are read where they lie, none are part of this project. Latency rule as in that paper: L < 0.9 x objective / 2,
up to 5 MPS processes in a MIG instance (ours: rule ``half``, so that the figures compare; not the default rule).
``parvagpu`` and ``mixed optimum`` are quoted from measurements of its own program and of an integer program that may
mix instance sizes per model under a weighted split; our decision space is one kind per model, even split.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gpulet.model.demand import Demand, ModelId
from gpulet.model.device import Gpu, Node
from gpulet.model.plan import PlannerPolicy, Problem
from gpulet.model.profile import Profile, ProfilePoint
from gpulet.nvidia.tables import PRODUCTS
from gpulet.planner import plan
from gpulet.planner.throughput import option_of

PRODUCT = PRODUCTS["NVIDIA-A100-SXM4-80GB"]
SLICES = {"1g.10gb": 1, "2g.20gb": 2, "3g.40gb": 3, "4g.40gb": 4, "7g.80gb": 7}
POLICY = PlannerPolicy(interference_margin=0.0, latency_rule="half", transition_reserve=0)
SCENARIOS = {"S1": (2, 2), "S2": (3, 3), "S3": (5, 5), "S4": (7, 7)}
# Round-robin generator, mean 0.6 GPU a service, seed 1: (ParvaGPU's program, mixed optimum).
GENERATED = {11: (8, 7), 22: (14, 13), 50: (30, 28), 100: (58, 54), 200: (130, 124)}


def profiles(folder: Path) -> list[Profile]:
    """One profile a model, in the order of the files. Their throughput is per process, their latency in seconds."""
    names = {size: name for name, size in SLICES.items()}
    found = []
    for file in sorted((folder / "prof_data").glob("*.csv")):
        points = []
        with file.open(newline="") as lines:
            for row in csv.DictReader(lines):
                size, batch, processes = (int(row[n]) for n in ("Mig instance", "Batch size", "Workload Number"))
                try:
                    per_s, us = float(row["Throughput"]) * processes, float(row["Latency"]) * 1e6
                except ValueError:
                    continue
                if per_s > 0 and us > 0:
                    points.append(
                        ProfilePoint(PRODUCT.name, names[size], 100, batch, processes, us, us, us, per_s, 1000)
                    )
        found.append(Profile(tuple(points), file.stem))
    return found


def table(file: Path) -> list[list[float | None]]:
    with file.open(newline="") as lines:
        return [[float(v) if v.strip() not in ("", "N/A") else None for v in row] for row in csv.reader(lines)]


def wish(index: int, profile: Profile, rate_per_s: float, objective_ms: float) -> Demand:
    # Strictly below 0.45 of the objective, at a resolution of 1 ms.
    return Demand(ModelId("bench", f"{index:04d}"), rate_per_s, 0.9 * objective_ms - 1e-3, 99, profile, mode="MIG")


def problem(demands: list[Demand], gpus: int) -> Problem:
    cards = tuple(
        Gpu(
            "node",
            f"GPU-{i:04d}",
            PRODUCT.name,
            PRODUCT.memory_mib,
            PRODUCT.clients,
            whole=False,
            placements=PLACEMENTS,
        )
        for i in range(gpus)
    )
    return Problem(cards, (Node("node", 10**9, 10**9, 10**6),), tuple(demands), policy=POLICY)


PLACEMENTS = tuple(p for p in PRODUCT.placements if p.profile in SLICES)


def scenarios(folder: Path) -> Iterator[tuple[str, list[Demand], tuple[int, int]]]:
    models, objectives, rates = (
        profiles(folder),
        table(folder / "SLO/SLO_latency.csv"),
        table(folder / "SLO/SLO_req_rate.csv"),
    )
    for (name, known), slo, rate in zip(SCENARIOS.items(), objectives, rates, strict=False):
        rows = zip(models, rate, slo, strict=False)
        demands = [wish(i, m, r, float(int(o))) for i, (m, r, o) in enumerate(rows) if r is not None and o is not None]
        yield name, demands, known


def generated(folder: Path, number: int) -> list[Demand]:
    models, objectives = profiles(folder), table(folder / "SLO/SLO_latency.csv")
    chance = np.random.default_rng(1)
    demands = []
    for i in range(number):
        j = i % len(models)
        objective_ms = float(int(chance.choice([row[j] for row in objectives if row[j] is not None])))
        factor = float(chance.lognormal(-0.5, 1))
        one = wish(i, models[j], 1.0, objective_ms)
        ways = [o for p in one.profile.points if (o := option_of(one, p, POLICY)) is not None]
        best = 7 * max(o.replica_per_s / SLICES[o.mig] for o in ways)
        demands.append(wish(i, models[j], max(1.0, float(int(best * 0.6 * factor))), objective_ms))
    return demands


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True, help="folder that holds parvagpu/")
    parser.add_argument("--sizes", default="11,22,50,100", help="numbers of generated services")
    asked = parser.parse_args()
    folder = asked.data / "parvagpu"
    cases = list(scenarios(folder))
    cases += [(str(n), generated(folder, n), GENERATED.get(n, (0, 0))) for n in map(int, asked.sizes.split(","))]
    print(f"{'case':>6} {'models':>6} {'GPUs':>5} {'bound':>5} {'parvagpu':>8} {'mixed optimum':>13} {'seconds':>8}")
    for name, demands, (parva, optimum) in cases:
        start = time.perf_counter()
        found = plan(problem(demands, 3 * (optimum or len(demands))))
        spent = time.perf_counter() - start
        left = f"  {len(found.unplaced)} left out" if found.unplaced else ""
        print(
            f"{name:>6} {len(demands):>6} {found.gpus:>5} {found.lower_bound:>5} "
            f"{parva:>8} {optimum:>13} {spent:>8.2f}{left}"
        )


if __name__ == "__main__":
    main()
