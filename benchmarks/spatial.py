"""The highest common rate factor of ours and the papers' planners, over all mixes of five models and four rates.

    python benchmarks/spatial.py [--data DIR] [--scenarios N] [--gpus N] [-o json]

The experiment of gpu-lets (arXiv 2109.01611): five models, each at one of four rates: 4^5 - 1 = 1,023 scenarios, on
four GPUs. For each planner the largest factor is looked for by which all rates of a scenario can be multiplied and
still be served. Without --data on a synthetic GPU with knees (``benchmarks/synthetic.py``); with it on ParvaGPU's
published profiles of MIG instances, DIR being the folder with ``prof_data/``.

On equal terms: latency rule of the papers (2 L <= objective, with turns cycle + L <= objective), loaded to 100 %,
batches of at most 32, one process a share, objectives of twice the whole GPU's latency at batch 32, rates as given (no
slack, no headroom). Planners:

- ``temporal``: whole GPUs, squishy bin packing (Nexus). ``elastic``: gpu-lets, the better of its two orders of GPUs.
  ``selfTuning``: guided self-tuning. ``ideal``: the best of all cuts in two parts and all turns; ``idealBound``: no
  plan in that space is above it.
- ``ours``: the product's planner, any number of parts, turns; ``oursAlone``: without turns.
- Synthetic GPU: ``elasticBeside`` and ``oursBeside`` plan with interference, the one pair by pair, ours with the worst
  of all pairs as margin. With --data: ``oursProcesses`` may use up to three processes in a MIG instance.

The factor of ours is the planner's own answer (objective ``rate``), those of the others are found by scanning (they are
not monotone). Scenarios are taken in a fixed order that spreads them. On a busy machine one takes 4 to 10 CPU seconds:
the default of 64 about ten minutes, all 1,023 up to three hours.
``--cpu-seconds`` ends a run early, and the output says after how many.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

# This folder would hide the standard library's ``fractions``: the folder above takes its place.
if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np

from benchmarks import parvagpu, synthetic
from benchmarks.baselines.elastic import elastic
from benchmarks.baselines.gpulets import Rules, Slowdown, alone
from benchmarks.baselines.ideal import Uses, factor_bound, highest_factor, uses
from benchmarks.baselines.nexus import squishy
from benchmarks.baselines.rates import peak
from benchmarks.baselines.self_tuning import self_tuned
from benchmarks.baselines.surface import MAX_BATCH, MIG, MPS, Grid, Service, service
from gpulet.model.demand import Demand, ModelId
from gpulet.model.device import Gpu, Node
from gpulet.model.plan import PlannerPolicy, Problem
from gpulet.model.profile import Profile, ProfilePoint
from gpulet.planner import plan

RATES_PER_S = (0, 200, 400, 600)
PARVAGPU_MODELS = ("mobilenetv2", "inceptionv3", "resnet50", "densenet121", "vgg16")
"""Of ParvaGPU's eleven, those nearest to the five of gpu-lets; it has neither LeNet nor SSD."""
PROCESSES = 3
STRIDE = 389
"""Coprime to 1,023: any number of scenarios taken in this order is spread over all."""
POLICY = PlannerPolicy(
    interference_margin=0.0,
    transition_reserve=0,
    latency_rule="half",
    objective="rate",
    split="weighted",
    time_sharing=True,
)
PLENTY = 10**9

Mix = Sequence[tuple[Service, float]]


class DataError(ValueError):
    """The data cannot be used; the message names the folder and the remedy."""


@dataclass(frozen=True)
class World:
    """A kind of GPU, five models on it, and how the product sees both."""

    name: str
    grid: Grid
    models: tuple[Service, ...]
    profiles: Mapping[str, Profile]
    many: Mapping[str, Profile] | None
    """Profiles with several processes a share; None: there are none."""
    slowdown: Slowdown | None
    margin: float
    card: Gpu
    table: Mapping[int, Uses] = field(default_factory=dict)


def synthetic_world() -> World:
    """The GPU of ``benchmarks/synthetic.py``, shared by MPS."""
    models = tuple(synthetic.services())
    card = Gpu("node", "GPU", "synthetic", memory_mib=PLENTY, clients=48)
    profiles = {model.name: _profile(model, card.product) for model in models}
    margin = synthetic.worst_slowdown() - 1
    return World("synthetic, MPS", MPS, models, profiles, None, synthetic.slowdown, margin, card)


def _profile(model: Service, name: str) -> Profile:
    points = []
    for size in MPS.sizes:
        for batch in synthetic.BATCHES:
            us = 1000 * model.latency_ms(size, batch)
            points.append(ProfilePoint(name, None, size, batch, 1, us, us, us, 1e6 * batch / us, memory_mib=1))
    return Profile(tuple(points), model.name)


def parvagpu_world(folder: Path) -> World:
    """An A100-80GB cut by MIG, with ParvaGPU's profiles. Raises DataError."""
    try:
        found = {p.source: p for p in parvagpu.profiles(folder, PROCESSES) if p.source in PARVAGPU_MODELS}
    except (OSError, KeyError, ValueError) as error:
        raise DataError(f"{folder}: ParvaGPU's profiles cannot be read: {error}: give its folder") from error
    lacking = [name for name in PARVAGPU_MODELS if name not in found]
    if lacking:
        raise DataError(f"{folder}: no prof_data/{lacking[0]}.csv: give the folder of ParvaGPU's data")
    many = {name: _of_small_batches(profile, PROCESSES) for name, profile in found.items()}
    one = {name: _of_small_batches(profile, 1) for name, profile in found.items()}
    models = tuple(_service(name, one[name]) for name in PARVAGPU_MODELS)
    (card,) = parvagpu.problem((), 1).gpus
    return World("ParvaGPU's profiles, A100 MIG", MIG, models, one, many, None, 0.0, card)


def _of_small_batches(profile: Profile, processes: int) -> Profile:
    points = tuple(p for p in profile.points if p.batch <= MAX_BATCH and p.instances <= processes)
    return replace(profile, points=points)


def _service(name: str, profile: Profile) -> Service:
    """As the baselines see it: latency over compute slices and batch, one process."""
    points: dict[int, dict[int, float]] = {size: {} for size in MIG.sizes}
    for point in profile.points:
        points[parvagpu.SLICES[point.mig or ""]][point.batch] = point.mean_us / 1000
    return service(name, 2 * points[MIG.whole][MAX_BATCH], points)


def scenarios(models: Sequence[Service], number: int) -> Iterator[tuple[int, Mix]]:
    """The first ``number`` of all mixes in the spread order: (its number, models with their rates)."""
    mixes = [mix for mix in product(RATES_PER_S, repeat=len(models)) if any(mix)]
    for step in range(min(number, len(mixes))):
        index = step * STRIDE % len(mixes)
        yield index, [(m, float(r)) for m, r in zip(models, mixes[index], strict=True) if r]


def factors(world: World, mix: Mix, gpus: int) -> dict[str, float]:
    """The highest common factor of every planner."""
    bound = factor_bound(mix, gpus, world.grid, world.table)
    found: dict[str, float] = {
        "temporal": peak(lambda f: _within(squishy(world.grid.whole, _times(mix, f)), gpus), most=bound),
        "elastic": _elastic(world, mix, gpus, alone, bound),
        "selfTuning": peak(lambda f: self_tuned(_times(mix, f), gpus, world.grid) is not None, most=bound),
    }
    known = max(found.values())
    ideal = highest_factor(mix, gpus, world.grid, world.table, known=known, exact=False)
    found |= {"ideal": ideal.reached, "idealBound": ideal.bound}
    found["ours"] = ours(world, mix, gpus, POLICY)
    found["oursAlone"] = ours(world, mix, gpus, replace(POLICY, time_sharing=False))
    if world.slowdown is not None:
        found["elasticBeside"] = _elastic(world, mix, gpus, world.slowdown, bound)
        found["oursBeside"] = ours(world, mix, gpus, replace(POLICY, interference_margin=world.margin))
    if world.many is not None:
        found["oursProcesses"] = ours(replace(world, profiles=world.many), mix, gpus, POLICY)
    return found


def _times(mix: Mix, factor: float) -> Mix:
    return [(model, rate * factor) for model, rate in mix]


def _within(nodes: Sequence[object] | None, gpus: int) -> bool:
    return nodes is not None and len(nodes) <= gpus


def _elastic(world: World, mix: Mix, gpus: int, slowdown: Slowdown, most: float) -> float:
    found = []
    for first in (True, False):
        rules = Rules(slowdown=slowdown, slack_per_s=0.0, whole_first=first)
        found.append(peak(partial(_elastic_serves, world, mix, gpus, rules), most=most))
    return max(found)


def _elastic_serves(world: World, mix: Mix, gpus: int, rules: Rules, factor: float) -> bool:
    return elastic(_times(mix, factor), gpus, world.grid, rules) is not None


def ours(world: World, mix: Mix, gpus: int, policy: PlannerPolicy) -> float:
    """The product's planner, asked for the highest common factor of all rates."""
    cards = tuple(replace(world.card, uuid=f"GPU-{i}") for i in range(gpus))
    demands = tuple(
        Demand(
            ModelId("bench", model.name), rate, model.objective_ms, 99.0, world.profiles[model.name], isolation="Any"
        )
        for model, rate in mix
    )
    made = plan(Problem(cards, (Node("node", PLENTY, PLENTY, PLENTY),), demands, policy=policy))
    return 0.0 if made.unplaced or made.rate_factor is None else made.rate_factor


def run(world: World, number: int, gpus: int, cpu_limit_s: float) -> dict[str, Any]:
    """All rows, and their means; ends early at the limit of CPU time."""
    world = replace(world, table={size: uses(world.models, size) for size in world.grid.sizes})
    rows: list[dict[str, Any]] = []
    started = time.process_time()
    for index, mix in scenarios(world.models, number):
        rates = {model.name: rate for model, rate in mix}
        rows.append({"scenario": index, "ratesPerSecond": rates} | factors(world, mix, gpus))
        spent = time.process_time() - started
        if len(rows) % 8 == 0 or spent > cpu_limit_s:
            print(f"{world.name}: {len(rows)} of {number} scenarios, {spent:.0f} CPU s", file=sys.stderr, flush=True)
        if spent > cpu_limit_s:
            break
    spent = time.process_time() - started
    return {
        "world": world.name,
        "gpus": gpus,
        "objectivesMilliseconds": {m.name: round(m.objective_ms, 1) for m in world.models},
        "scenarios": len(rows),
        "cpuSeconds": round(spent, 1),
        "planners": {name: summary(rows, name) for name in rows[0] if name not in ("scenario", "ratesPerSecond")},
        "rows": rows,
    }


def summary(rows: Sequence[Mapping[str, Any]], name: str) -> dict[str, float]:
    """A planner beside the temporal baseline and the ideal."""
    times = [row[name] / row["temporal"] for row in rows if row["temporal"] > 0]
    ideal = [row[name] / row["ideal"] for row in rows if row["ideal"] > 0]
    return {
        "meanFactor": round(float(np.mean([row[name] for row in rows])), 4),
        "timesTemporal": round(float(np.mean(times)), 4),
        "medianTimesTemporal": round(float(np.median(times)), 4),
        "leastTimesTemporal": round(min(times), 4),
        "mostTimesTemporal": round(max(times), 4),
        "ofIdeal": round(float(np.mean(ideal)), 4),
    }


def as_table(result: Mapping[str, Any]) -> str:
    """Text in columns."""
    titles = ("mean factor", "x temporal", "median", "least", "most", "of ideal")
    head = (
        f"{result['world']}: {result['scenarios']} of 1023 scenarios, {result['gpus']} GPUs, {result['cpuSeconds']} s"
    )
    lines = [head + " CPU", " " * 16 + " ".join(f"{title:>11}" for title in titles)]
    for name, figures in result["planners"].items():
        lines.append(f"{name:16}" + " ".join(f"{value:>11.3f}" for value in figures.values()))
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0, or 1 for data that cannot be used."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--data", type=Path, metavar="DIR", help="ParvaGPU's folder; absent: the synthetic GPU")
    parser.add_argument("--scenarios", type=int, default=64, metavar="N", help="of 1023 (default 64)")
    parser.add_argument("--gpus", type=int, default=4, metavar="N", help="in the fleet (default 4)")
    parser.add_argument("--cpu-seconds", type=float, default=1800.0, metavar="N", help="end then (default 1800)")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    asked = parser.parse_args(arguments)
    if asked.scenarios < 1 or asked.gpus < 1:
        parser.error("--scenarios and --gpus: at least 1")
    try:
        world = parvagpu_world(asked.data) if asked.data else synthetic_world()
    except DataError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    result = run(world, asked.scenarios, asked.gpus, asked.cpu_seconds)
    print(json.dumps(result, indent=2) if asked.output == "json" else as_table(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
