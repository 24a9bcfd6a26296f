"""What serving programs say of a file that cannot be served, in the status of its model. Whole passes."""

import asyncio
import json
from typing import Any

import pytest

from gpulet.api.workload import ServeReport
from tests.controller.cluster import Cluster, given_profile, inference_model, node, whole_gpu_slice
from tests.controller.passes import condition, one_pass


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.add(node("node1"))
    made.add(whole_gpu_slice("node1", 0))
    made.add(given_profile("p"))
    return made


def started(cluster: Cluster) -> tuple[dict[str, Any], tuple[str, str]]:
    model = cluster.add(inference_model("m", rate=5, slo_ms=300, profileRef={"name": "p"}))
    for _ in range(2):
        asyncio.run(one_pass(cluster))
        cluster.kubelet(ready=False)
    (key,) = cluster.objects["Pod"]
    return model, key


def words(error: str, **more: str) -> dict[str, Any]:
    return {"models": [], "runtime": "triton", "runtimeVersion": "1", "error": error} | more


def crashed(message: str) -> dict[str, Any]:
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    ended = {"terminated": {"exitCode": 1, "message": message}}
    return {
        "phase": "Running",
        "containerStatuses": [{"name": "server", "ready": False, "state": waiting, "lastState": ended}],
    }


@pytest.mark.parametrize("reason", ["ModelMissing", "ModelBroken", "UnsupportedFormat"])
@pytest.mark.parametrize("way", ["last words", "report"])
def test_the_program_s_own_reason_is_the_condition_s(cluster: Cluster, way: str, reason: str) -> None:
    """Over HTTP while it runs, in its last words once it has ended; whatever words stand beside it."""
    model, key = started(cluster)
    said = words("model m: m.onnx is broken: an input is missing; replace the file at spec.model.uri", reason=reason)
    if way == "report":
        cluster.reports[key] = ServeReport.model_validate(said)
    else:
        cluster.objects["Pod"][key]["status"] = crashed(json.dumps(said))
    asyncio.run(one_pass(cluster))
    serving = condition(model, "Serving")
    assert (serving["status"], serving["reason"]) == ("False", reason)
    assert "an input is missing" in serving["message"]
    assert condition(model, "Stalled")["status"] == "True"


@pytest.mark.parametrize("more", [{}, {"reason": "no word of ours"}], ids=["none", "odd"])
def test_a_reason_that_is_none_of_ours_stops_nobody(cluster: Cluster, more: dict[str, str]) -> None:
    """From an older program, or from a user's own image."""
    model, key = started(cluster)
    cluster.objects["Pod"][key]["status"] = crashed(json.dumps(words("m.onnx is missing", **more)))
    asyncio.run(one_pass(cluster))
    assert condition(model, "Serving")["reason"] == "ModelBroken"
    assert condition(model, "Stalled")["status"] == "True"
