"""GPUs that ParvaGPU's own scenarios need (SC'24), each with a bound, on its published profiles.

    python benchmarks/parvagpu.py DIR [--scenario S1] [-o table|json]

DIR holds ``prof_data/`` and ``SLO/`` as published; the data are read where they lie. There are as many scenarios as the
rate file has lines. Settings of the paper: latency < 0.9 x objective / 2, at most 5 MPS processes in a MIG instance,
rates as given (no headroom), no time sharing; replicas of one model may differ in size (weighted split).
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpulet.model.demand import Demand, ModelId
from gpulet.model.device import Gpu, Node
from gpulet.model.plan import Plan, PlannerPolicy, Problem, Slot
from gpulet.model.profile import Profile, ProfilePoint
from gpulet.nvidia.tables import PRODUCTS
from gpulet.planner import plan
from gpulet.planner.layouts import collide

PRODUCT = PRODUCTS["NVIDIA-A100-SXM4-80GB"]
SLICES = {"1g.10gb": 1, "2g.20gb": 2, "3g.40gb": 3, "4g.40gb": 4, "7g.80gb": 7}
PLACEMENTS = tuple(p for p in PRODUCT.placements if p.profile in SLICES)
POLICY = PlannerPolicy(interference_margin=0.0, transition_reserve=0, latency_rule="parvagpu", split="weighted")
MOST_PROCESSES = 5
_MEMORY_MIB = 1000
"""What does not fit has no point in the data: memory is no limit beyond that."""


@dataclass(frozen=True)
class Scenario:
    name: str
    demands: tuple[Demand, ...]


def profiles(folder: Path, processes: int = MOST_PROCESSES) -> list[Profile]:
    """One profile a model, in the order of the files. Their throughput is per process, their latency in seconds."""
    names = {size: name for name, size in SLICES.items()}
    found = []
    for file in sorted((folder / "prof_data").glob("*.csv")):
        points = []
        with file.open(newline="") as lines:
            for row in csv.DictReader(lines):
                size, batch, number = (int(row[n]) for n in ("Mig instance", "Batch size", "Workload Number"))
                try:
                    per_s, us = float(row["Throughput"]) * number, float(row["Latency"]) * 1e6
                except ValueError:
                    continue  # N/A: it ran out of memory
                if per_s > 0 and us > 0 and number <= processes:
                    points.append(
                        ProfilePoint(PRODUCT.name, names[size], 100, batch, number, us, us, us, per_s, _MEMORY_MIB)
                    )
        found.append(Profile(tuple(points), file.stem))
    return found


def table(file: Path) -> list[list[float | None]]:
    """Numbers of a file without a header; None where a model is absent."""
    with file.open(newline="") as lines:
        rows = [[v.strip() for v in row] for row in csv.reader(lines)]
    return [[float(v) if v not in ("", "N/A") else None for v in row] for row in rows if any(row)]


def wish(name: str, profile: Profile, rate_per_s: float, objective_ms: float) -> Demand:
    return Demand(ModelId("bench", name), rate_per_s, objective_ms, 99, profile, mode="MIG")


def scenarios(folder: Path) -> list[Scenario]:
    """The peer reads objectives as whole milliseconds: 216.5 is 216."""
    models, objectives = profiles(folder), table(folder / "SLO/SLO_latency.csv")
    found = []
    for index, rates in enumerate(table(folder / "SLO/SLO_req_rate.csv")):
        rows = zip(models, rates, objectives[index], strict=False)
        wishes = tuple(
            wish(model.source, model, rate, float(int(objective)))
            for model, rate, objective in rows
            if rate is not None and objective is not None
        )
        found.append(Scenario(f"S{index + 1}", wishes))
    return found


def problem(demands: Sequence[Demand], gpus: int, policy: PlannerPolicy = POLICY) -> Problem:
    """A fleet of A100-80GB that are cut, on one node whose host is no limit."""
    cards = tuple(
        Gpu(
            "node",
            f"GPU-{i:05d}",
            PRODUCT.name,
            PRODUCT.memory_mib,
            PRODUCT.clients,
            whole=False,
            placements=PLACEMENTS,
        )
        for i in range(gpus)
    )
    return Problem(cards, (Node("node", 10**9, 10**9, 10**6),), tuple(demands), policy=policy)


def enough_gpus(demands: Sequence[Demand]) -> int:
    """A fleet on which anything fits: each model by its best slots alone, rounded up, and some more."""
    total = 0.0
    for one in demands:
        best = max(7 * p.throughput_per_s / SLICES[p.mig or ""] for p in one.profile.points)
        total += one.requests_per_s / best
    return int(2 * total) + len(demands) // 2 + 8


def solved(demands: Sequence[Demand], policy: PlannerPolicy = POLICY) -> tuple[Problem, Plan, float, float]:
    """The problem, its plan, and the wall and CPU seconds of planning alone."""
    asked = problem(demands, enough_gpus(demands), policy)
    wall, cpu = time.perf_counter(), time.process_time()
    found = plan(asked)
    return asked, found, time.perf_counter() - wall, time.process_time() - cpu


def faults(asked: Problem, found: Plan) -> list[str]:
    """What is wrong with a plan, judged from the profiles and NVIDIA's placement table alone."""
    wrong = [f"{u.model} left out: {u.reason}" for u in found.unplaced]
    spots = {(p.profile, p.start): p for p in PLACEMENTS}
    cut: dict[str, list[tuple[str | None, int | None]]] = {}
    for slot in found.slots:
        cut.setdefault(slot.device.gpu, []).append((slot.device.profile, slot.device.start))
    for gpu, names in cut.items():
        there = [spots[name] for name in names if name in spots]  # type: ignore[index]
        clash = any(collide(a, b) for i, a in enumerate(there) for b in there[:i])
        if len(there) < len(names) or clash or sum(p.compute_slices for p in there) > PRODUCT.compute_slices:
            wrong.append(f"placements of {gpu}: {names}")
    by_model = {d.model: d for d in asked.demands}
    for placed in found.placed:
        one = by_model[placed.model]
        if any(s.turns for s in placed.slots):
            wrong += _turn_faults(placed.slots[0], one)
            continue
        measured = {(p.mig, p.batch, p.instances): p for p in one.profile.points}
        points = [measured[s.device.profile, s.batch, s.instances] for s in placed.slots]
        if sum(p.throughput_per_s for p in points) < one.requests_per_s * (1 - 1e-6):
            wrong.append(f"{placed.model} is short of its rate")
        if not all(p.p99_us / 1000 < 0.45 * one.latency_ms for p in points):
            wrong.append(f"{placed.model} misses the latency rule")
    return wrong


def _turn_faults(slot: Slot, one: Demand) -> list[str]:
    """A model that takes turns: its batch takes what arrives in a cycle; cycle and batch are within 0.9 x objective."""
    cycle_ms = slot.cycle_us / 1000
    (turn,) = (t for t in slot.turns if t.model == one.model)
    measured = {(p.mig, p.batch, p.instances): p.p99_us / 1000 for p in one.profile.points}
    ms = measured[slot.device.profile, turn.batch, 1]
    short = turn.batch < one.requests_per_s * cycle_ms / 1000 * (1 - 1e-6)
    late = cycle_ms + ms > 0.9 * one.latency_ms * (1 + 1e-6)
    full = sum(t.busy_us for t in slot.turns) > slot.cycle_us * (1 + 1e-6) or turn.busy_us < ms * 1000 - 1
    return [f"{one.model}: turn of {ms:g} ms in {cycle_ms:g} ms"] if short or late or full else []


def row(name: str, demands: Sequence[Demand], policy: PlannerPolicy = POLICY) -> dict[str, object]:
    asked, found, wall_s, cpu_s = solved(demands, policy)
    return {
        "scenario": name,
        "models": len(demands),
        "gpus": found.gpus,
        "lowerBound": found.lower_bound,
        "boundKind": found.bound_kind,
        "boundCovers": list(found.bound_covers),
        "solveSeconds": round(wall_s, 3),
        "cpuSeconds": round(cpu_s, 3),
        "gpulets": len(found.slots),
        "faults": faults(asked, found),
    }


def show(rows: Sequence[dict[str, object]], columns: Sequence[str]) -> None:
    widths = {c: max(len(c), *(len(_text(r.get(c))) for r in rows)) for c in columns}
    print("  ".join(c.rjust(widths[c]) for c in columns))
    for one in rows:
        print("  ".join(_text(one.get(c)).rjust(widths[c]) for c in columns))


def _text(value: object) -> str:
    if isinstance(value, list):
        return "; ".join(str(v) for v in value) or "none"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("dir", type=Path, help="folder that holds prof_data/ and SLO/")
    parser.add_argument("--scenario", help="one scenario, such as S1; absent: all")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    asked = parser.parse_args()
    found = [s for s in scenarios(asked.dir) if asked.scenario in (None, s.name)]
    if not found:
        parser.error(f"--scenario {asked.scenario}: the rate file has {len(scenarios(asked.dir))} lines, S1 to Sn")
    rows = [row(s.name, s.demands) for s in found]
    if asked.output == "json":
        print(json.dumps(rows, indent=2))
    else:
        columns = ("scenario", "models", "gpus", "lowerBound", "boundKind", "solveSeconds", "cpuSeconds", "faults")
        show(rows, columns)
    return 1 if any(r["faults"] for r in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
