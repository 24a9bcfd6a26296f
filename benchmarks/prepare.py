"""How long the node takes to make a share: the agent's gRPC service with real MPS runner and daemons, no kubelet.

``python -m benchmarks.prepare`` (root, for tmpfs mounts; --no-tmpfs without). Simulated GPUs: on a real one the time of
the driver comes on top. Exit code 2: the bound of the issue (p99 of one share whose daemon runs: 200 ms) is missed.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.agent.kubelet import Api, Kubelet, client_of, kubelet_of

from gpulet.agent.daemons import Daemons
from gpulet.agent.shares import Shares
from gpulet.nvidia.simulated import SimulatedSource

_GPUS = 8
_PERCENT = 7
_P99_MS = 200.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shares", type=int, default=200, help="shares made one after the other")
    parser.add_argument("--parallel", type=int, default=100, help="shares made at once, at most 104")
    parser.add_argument("--no-tmpfs", action="store_true", help="plain folders for /dev/shm")
    parser.add_argument("--output", "-o", choices=("table", "json"), default="table")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="prep") as name:
        folder = Path(name)
        command = [sys.executable, "-m", "gpulet.cli.main", "mps-runner", "--root", str(folder / "mps")]
        runner = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            found = asyncio.run(_measure(folder, arguments))
        finally:
            runner.terminate()
            runner.wait(60)
    if arguments.output == "json":
        print(json.dumps(found, indent=2))
    else:
        for name, value in found.items():
            print(f"{name:14} {value}")
    return 0 if found["serial"]["p99Ms"] <= _P99_MS else 2


async def _measure(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    gpus = [("NVIDIA-H100-80GB-HBM3", True, 250)] * _GPUS
    source = SimulatedSource("node1", gpus, folder / "state/simulated.json", folder / "state/faults.json")
    daemons = Daemons(folder / "mps", "simulated", mount_shm=not arguments.no_tmpfs)
    shares = Shares(node="node1", source=source, daemons=daemons, state=folder / "state", cdi_folder=folder / "cdi")
    count = max(arguments.shares, arguments.parallel) + _GPUS
    claims = [_claim(source, f"c{i}", i % _GPUS) for i in range(count)]
    holders, others = claims[:_GPUS], claims[_GPUS:]
    api = Api({c["metadata"]["name"]: c for c in claims})
    async with client_of(api) as client, kubelet_of(shares, client, folder / "k") as kubelet:
        cold = [await _prepare(kubelet, c) for c in holders]
        serial = []
        for claim in others[: arguments.shares]:
            serial.append(await _prepare(kubelet, claim))
            await kubelet.unprepare(claim)
        begun = time.perf_counter()
        parallel = await asyncio.gather(*(_prepare(kubelet, c) for c in others[: arguments.parallel]))
        together_s = time.perf_counter() - begun
        for claim in claims:
            await kubelet.unprepare(claim)
    return {
        "machine": {"cpus": os.cpu_count(), "load1": round(os.getloadavg()[0], 2)},
        "cold": _figures(cold),
        "serial": _figures(serial),
        "parallel": _figures(parallel) | {"togetherS": round(together_s, 2)},
    }


async def _prepare(kubelet: Kubelet, claim: dict[str, Any]) -> float:
    """Milliseconds as the kubelet sees them."""
    begun = time.perf_counter()
    (answer,) = (await kubelet.prepare(claim)).values()
    took_ms = (time.perf_counter() - begun) * 1e3
    if answer.error:
        raise SystemExit(f"prepare failed: {answer.error}")
    return took_ms


def _figures(times_ms: list[float]) -> dict[str, Any]:
    cuts = statistics.quantiles(times_ms, n=100, method="inclusive")
    return {
        "shares": len(times_ms),
        "p50Ms": round(cuts[49], 1),
        "p99Ms": round(cuts[98], 1),
        "maxMs": round(max(times_ms), 1),
    }


def _claim(source: SimulatedSource, uid: str, index: int) -> dict[str, Any]:
    gpu = source.gpus()[index]
    result = {
        "request": "gpulet",
        "driver": "gpulet.dev",
        "pool": f"node1/{gpu.uuid.lower()}",
        "device": f"gpu-{index}",
        "shareID": f"share-{uid}",
        "consumedCapacity": {"computePercent": str(_PERCENT), "memory": "4Gi", "clients": "1"},
    }
    return {
        "metadata": {"namespace": "bench", "name": f"claim-{uid}", "uid": uid},
        "status": {"allocation": {"devices": {"results": [result], "config": []}}},
    }


if __name__ == "__main__":
    sys.exit(main())
