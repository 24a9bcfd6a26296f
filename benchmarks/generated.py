"""GPUs and seconds that generated fleets need, from ParvaGPU's published profiles: growth with the number of models.

    python benchmarks/generated.py DIR [--models 10 1000] [--means 0.2 0.6 2.0] [--seeds 1 2 3]
        [--time-sharing] [-o table|json]

DIR as for ``parvagpu.py``. Two generators, with numpy's ``default_rng(seed)``: for each model an objective is drawn
from those of its column in ``SLO_latency.csv`` (repeated ones counted as often), and its rate is ``best x mean x
lognormal(-0.5, 1)``, where ``best`` is what a whole A100 does at the model's most efficient size.
``round-robin``: profile i mod 11, at most 5 processes, objectives and rates whole numbers. ``random``: profile drawn,
at most 3 processes. A second table has time sharing on (``random`` at up to 5 processes, mean 0.05 of a GPU a
model).
Peak memory is that of the process so far: sizes go up.
"""

from __future__ import annotations

import argparse
import json
import resource
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from gpulet.model.demand import Demand
from gpulet.model.plan import PlannerPolicy
from gpulet.model.profile import Profile
from parvagpu import POLICY, SLICES, profiles, row, show, table, wish

GENERATORS = ("round-robin", "random")
SHARED = replace(POLICY, time_sharing=True)
SHARED_MEAN = 0.05


@dataclass
class Source:
    """Profiles and objectives of the data, and what a whole GPU does with each."""

    models: list[Profile]
    objectives: list[list[float]]
    """Per model, in order of the scenarios, without those where it is absent."""
    _best: dict[tuple[int, float], float] = field(default_factory=dict)

    @staticmethod
    def read(folder: Path, processes: int) -> Source:
        rows = table(folder / "SLO/SLO_latency.csv")
        models = profiles(folder, processes)
        return Source(models, [[v for r in rows if (v := r[j]) is not None] for j in range(len(models))])

    def best_per_s(self, model: int, objective_ms: float) -> float:
        """Requests/s of a whole A100 at the model's most efficient size that meets the objective."""
        key = (model, objective_ms)
        if key not in self._best:
            good = [p for p in self.models[model].points if p.p99_us / 1000 < 0.45 * objective_ms]
            self._best[key] = 7 * max(p.throughput_per_s / SLICES[p.mig or ""] for p in good)
        return self._best[key]


def generated(source: Source, generator: str, number: int, mean: float, seed: int) -> list[Demand]:
    chance = np.random.default_rng(seed)
    found = []
    for i in range(number):
        in_turn = generator == "round-robin"
        j = i % len(source.models) if in_turn else int(chance.integers(len(source.models)))
        objective_ms = float(chance.choice(source.objectives[j]))
        objective_ms = float(int(objective_ms)) if in_turn else objective_ms
        rate = source.best_per_s(j, objective_ms) * mean * float(chance.lognormal(-0.5, 1))
        rate = max(1.0, float(int(rate))) if in_turn else rate
        found.append(wish(f"{i:05d}", source.models[j], rate, objective_ms))
    return found


def measured(name: str, demands: Sequence[Demand], policy: PlannerPolicy) -> dict[str, object]:
    one = row(name, demands, policy)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    gpus, bound = one["gpus"], one["lowerBound"]
    assert isinstance(gpus, int)
    assert isinstance(bound, int)
    return one | {"overBound": gpus - bound, "peakMebibytes": round(peak_mib)}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("dir", type=Path, help="folder that holds prof_data/ and SLO/")
    parser.add_argument("--models", type=int, nargs="+", default=[10, 100, 1000, 10_000])
    parser.add_argument("--means", type=float, nargs="+", default=[0.2, 0.6, 2.0], help="GPUs a model needs on average")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    parser.add_argument("--time-sharing", action="store_true", help="the second table alone; JSON has one table a run")
    asked = parser.parse_args()
    rows = [] if asked.time_sharing else _dedicated(asked.dir, asked.models, asked.means, asked.seeds)
    both = asked.output == "table" or asked.time_sharing
    shared = _time_shared(asked.dir, asked.models, asked.seeds) if both else []
    if asked.output == "json":
        print(json.dumps([*rows, *shared], indent=2))
    else:
        columns = ("models", "mean", "seed", "gpus", "lowerBound", "overBound", "boundKind", "cpuSeconds")
        if rows:
            show(rows, ("scenario", *columns, "solveSeconds", "peakMebibytes", "faults"))
            print()
        show(shared, ("scenario", *columns, "dedicatedGpus", "overPercent", "faults"))
    return 1 if any(r["faults"] for r in (*rows, *shared)) else 0


def _dedicated(folder: Path, sizes: list[int], means: list[float], seeds: list[int]) -> list[dict[str, object]]:
    rows = []
    for number in sorted(sizes):
        for generator, processes in zip(GENERATORS, (5, 3), strict=True):
            source = Source.read(folder, processes)
            for mean in means:
                for seed in seeds:
                    demands = generated(source, generator, number, mean, seed)
                    rows.append(measured(generator, demands, POLICY) | {"mean": mean, "seed": seed})
    return rows


def _time_shared(folder: Path, sizes: list[int], seeds: list[int]) -> list[dict[str, object]]:
    rows = []
    source = Source.read(folder, 5)
    for number in sorted(sizes):
        for seed in seeds:
            demands = generated(source, "random", number, SHARED_MEAN, seed)
            alone, shared = row("random", demands, POLICY), measured("random", demands, SHARED)
            gpus, bound = shared["gpus"], shared["lowerBound"]
            assert isinstance(gpus, int)
            assert isinstance(bound, int)
            over = 100 * (gpus / max(1, bound) - 1)
            rows.append(
                shared
                | {"mean": SHARED_MEAN, "seed": seed, "dedicatedGpus": alone["gpus"], "overPercent": round(over, 1)}
            )
    return rows


if __name__ == "__main__":
    raise SystemExit(main())
