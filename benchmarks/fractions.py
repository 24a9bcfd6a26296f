"""GPUs for pods that ask for a fixed fraction of one: ours, best fit and the proven least, on Alibaba's gpu-v2023.

    python benchmarks/fractions.py DIR [--variant default] [-o json]

DIR holds ``openb_pod_list_<variant>.csv`` as hkust-adsl/kubernetes-scheduler-simulator ships them; they are read where
they lie. Only pods with a fraction of one GPU count, and only their GPU: host CPU, memory, time and GPU model do not.

- ``volume``: the sum of all fractions. ``bound``: Gilmore and Gomory's program over all ways to fill a GPU, in whole
  numbers: no packing has fewer GPUs.
- ``best fit``: pods in the order of the trace, each on the fullest GPU that has room. ``decreasing``: largest first.
- ``ours``: the product's planner. A pod of fixed size has no objective to plan for, so every size is put to it as one
  model whose only profile point is that share, with as many requests per second as there are pods: its replicas are
  the pods. Nothing but packing is left to decide; interference margin 0, isolation Any. ``our bound`` is what it
  proves by itself. It sees whole percents: a trace with finer fractions is refused.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# This folder would hide the standard library's ``fractions``: the folder above takes its place.
if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.baselines.packing import best_fit, bins_bound, decreasing, volume
from gpulet.model.demand import Demand, ModelId
from gpulet.model.device import Gpu, Node
from gpulet.model.plan import Plan, PlannerPolicy, Problem
from gpulet.model.profile import Profile, ProfilePoint
from gpulet.planner import plan

WHOLE_MILLI = 1000
PRODUCT = "NVIDIA-A100-SXM4-80GB"
"""Only a name here: no property of it is used."""
PLENTY = 10**9
SECOND_US = 1e6
OBJECTIVE_MS = 10_000.0
"""So long that it is no limit."""
POLICY = PlannerPolicy(interference_margin=0.0, transition_reserve=0, latency_rule="half", split="weighted")


class DataError(ValueError):
    """The data cannot be used; the message names the file and the remedy."""


def fractions(file: Path) -> list[int]:
    """Thousandths of a GPU of every pod with a fraction of one, in the order of the trace. Raises DataError."""
    found = []
    try:
        with file.open(newline="") as lines:
            rows = [(int(row["num_gpu"]), int(row["gpu_milli"])) for row in csv.DictReader(lines)]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{file}: not a pod list of gpu-v2023 ({error}): give the folder it lies in") from error
    for number, (gpus, milli) in enumerate(rows, start=2):
        if gpus == 1 and 0 < milli < WHOLE_MILLI:
            if milli % 10:
                raise DataError(f"{file}: line {number}: gpu_milli {milli} is no whole percent")
            found.append(milli)
    return found


def ours(pods: Sequence[int], gpus: int) -> Plan:
    """The product's plan of these shares on so many GPUs."""
    demands = tuple(_shares(milli, number) for milli, number in sorted(Counter(pods).items()))
    cards = tuple(Gpu("node", f"GPU-{i:05d}", PRODUCT, memory_mib=PLENTY, clients=WHOLE_MILLI) for i in range(gpus))
    return plan(Problem(cards, (Node("node", PLENTY, PLENTY, PLENTY),), demands, policy=POLICY))


def _shares(milli: int, number: int) -> Demand:
    """``number`` equal shares: one model, each of whose replicas serves one request per second."""
    point = ProfilePoint(
        PRODUCT, None, milli // 10, 1, 1, SECOND_US, SECOND_US, SECOND_US, throughput_per_s=1.0, memory_mib=1
    )
    name = ModelId("trace", f"milli-{milli:03d}")
    return Demand(name, float(number), OBJECTIVE_MS, 99.0, Profile((point,)), mode="MPS", isolation="Any")


def compare(variant: str, pods: Sequence[int], *, with_ours: bool) -> dict[str, Any]:
    """One row of the table."""
    arrived, sorted_pods = best_fit(pods, WHOLE_MILLI), best_fit(decreasing(pods), WHOLE_MILLI)
    row: dict[str, Any] = {
        "variant": variant,
        "pods": len(pods),
        "sizes": len(set(pods)),
        "volume": round(volume(pods, WHOLE_MILLI), 2),
        "lowerBound": round(bins_bound(pods, WHOLE_MILLI, whole=True)),
        "bestFit": len(arrived),
        "bestFitDecreasing": len(sorted_pods),
    }
    if with_ours:
        started = time.process_time()
        made = ours(pods, len(arrived))
        if made.unplaced:
            raise RuntimeError(f"{variant}: {made.unplaced[0]} on as many GPUs as best fit needs")
        row |= {
            "gpus": made.gpus,
            "ourLowerBound": made.lower_bound,
            "ourBoundKind": made.bound_kind,
            "cpuSeconds": round(time.process_time() - started, 2),
        }
    return row


COLUMNS = {
    "variant": "variant",
    "pods": "pods",
    "sizes": "sizes",
    "volume": "volume",
    "lowerBound": "bound",
    "bestFit": "best fit",
    "bestFitDecreasing": "decreasing",
    "gpus": "ours",
    "ourLowerBound": "our bound",
    "cpuSeconds": "CPU s",
}


def as_table(rows: Sequence[dict[str, Any]]) -> str:
    """Text in columns."""
    lines = [" ".join(f"{title:>12}" for title in COLUMNS.values())]
    lines += [" ".join(f"{row.get(key, '-'):>12}" for key in COLUMNS) for row in rows]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0, or 1 for data that cannot be used."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("dir", type=Path, metavar="DIR", help="folder with openb_pod_list_<variant>.csv")
    parser.add_argument("--variant", action="append", help="such as default; may be repeated; absent: all in DIR")
    parser.add_argument("--without-ours", action="store_true", help="only the heuristics and the bound: seconds")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    asked = parser.parse_args(arguments)
    try:
        names = asked.variant or sorted(
            f.stem.removeprefix("openb_pod_list_") for f in asked.dir.glob("openb_pod_list_*.csv")
        )
        if not names:
            raise DataError(f"{asked.dir}: no openb_pod_list_*.csv: give the folder they lie in")
        rows = []
        for name in names:
            print(f"{name}: packing", file=sys.stderr, flush=True)
            pods = fractions(asked.dir / f"openb_pod_list_{name}.csv")
            rows.append(compare(name, pods, with_ours=not asked.without_ours))
    except DataError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps({"rows": rows}, indent=2) if asked.output == "json" else as_table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
