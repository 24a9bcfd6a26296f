"""Whole passes of the real loop over a cluster in memory, and what the tests look at after them."""

import asyncio
import copy
import dataclasses
import json
from datetime import UTC, datetime
from typing import Any

from gpulet.api.policy import Policy
from gpulet.controller.decide import Pass, decide
from gpulet.controller.loop import Loop
from gpulet.controller.observations import Observations
from gpulet.metrics.exported import Exported
from tests.controller.cluster import Cluster, given_profile, inference_model

NOW = datetime(2026, 12, 1, 12, 0, 0, tzinfo=UTC)
POLICY = Policy.model_validate(
    {"profiling": {"computePercents": [40, 80], "batches": [1, 2]}, "tuning": {"clients": 2, "servers": 1}}
)


class Memory:
    """Stands where the API server, the caches and the executor are: a loop over a cluster in memory."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def objects(self) -> Any:
        return copy.deepcopy(self._cluster.objects)

    def observations(self) -> Observations:
        return dataclasses.replace(self._cluster.observations, reports=dict(self._cluster.reports))

    def take_refusals(self) -> list[Any]:
        return self._cluster.refusals

    @property
    def names_taken(self) -> dict[Any, str]:
        return self._cluster.names_taken

    @property
    def refused_children(self) -> dict[Any, str]:
        return self._cluster.refused_children


async def planned(cluster: Cluster, policy: Policy) -> Pass:
    """All that a pass knows, the plan included."""
    memory = Memory(cluster)
    loop = Loop(memory, memory, memory, Exported())  # type: ignore[arg-type]
    return await loop._plan(policy)


async def one_pass(cluster: Cluster, *, drained: bool = True, policy: Policy = POLICY) -> None:
    known = await planned(cluster, policy)
    if drained:
        known = dataclasses.replace(known, unrouted_for_s={key: 60.0 for key in known.unrouted_for_s})
    cluster.carry_out(decide(known, now=NOW))


def settle(cluster: Cluster, *, passes: int = 8) -> None:
    for _ in range(passes):
        asyncio.run(one_pass(cluster))
        cluster.kubelet()


def condition(raw: dict[str, Any], type_: str) -> dict[str, Any]:
    return next(c for c in raw["status"]["conditions"] if c["type"] == type_)


def report(percent: int) -> str:
    points = [
        {
            "product": "NVIDIA-A100-SXM4-80GB",
            "computePercent": percent,
            "batch": batch,
            "instances": 1,
            "latencyMicroseconds": {"mean": ms * 1000, "p50": ms * 1000, "p99": ms * 1100},
            "throughputPerSecond": batch * 1000 / ms,
            "memoryMebibytes": 2048,
        }
        for batch in (1, 2)
        for ms in (5 * batch * 100 / percent,)
    ]
    return json.dumps({"modelDigest": "sha256:0", "runtime": "triton", "runtimeVersion": "2.51.0", "points": points})


def serving_pods(cluster: Cluster) -> list[str]:
    """Names of pods that take traffic."""
    return [
        name
        for (_, name), pod in cluster.objects["Pod"].items()
        if pod["metadata"]["labels"].get("gpulet.dev/routed") == "true" and pod.get("status", {}).get("conditions")
    ]


def rolling(cluster: Cluster) -> tuple[dict[str, Any], tuple[str, str], tuple[str, str]]:
    """A model in the middle of a rollout: (model, old Gpulet, new Gpulet); the new pod is not ready yet."""
    cluster.add(given_profile("p"))
    model = cluster.add(inference_model("m", rate=5, slo_ms=300, profileRef={"name": "p"}))
    settle(cluster)
    (old,) = cluster.objects["Gpulet"]
    model["spec"]["model"]["uri"] = "configmap://m/other.onnx"
    model["metadata"]["generation"] = 2
    for _ in range(3):
        asyncio.run(one_pass(cluster))
    (new,) = cluster.objects["Gpulet"].keys() - {old}
    return model, old, new
