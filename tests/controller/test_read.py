"""What a busy cluster costs: versions are read once, and what changes nothing for us wakes nobody."""

import copy
from typing import Any

import pytest

from gpulet.controller.cache import pod_matters
from gpulet.controller.read import Reader
from tests.controller.cluster import Cluster, inference_model


def test_a_version_is_read_once_and_a_new_one_anew() -> None:
    cluster, reader = Cluster(), Reader()
    cluster.add(inference_model("same"))
    changing = cluster.add(inference_model("changing", rate=1))
    broken = cluster.add(inference_model("broken"))
    broken["spec"]["slo"] = {"latencyMilliseconds": "soon"}
    first = reader.read(cluster.objects)
    newer = copy.deepcopy(changing)
    newer["spec"]["load"]["requestsPerSecond"] = 2
    mended = inference_model("broken") | {"metadata": broken["metadata"]}
    cluster.objects["InferenceModel"] |= {("vision", "changing"): newer, ("vision", "broken"): mended}
    second = reader.read(cluster.objects)
    assert second.models["vision", "same"] is first.models["vision", "same"]
    assert second.models["vision", "changing"].spec.load.requests_per_second == 2
    assert [i.raw["metadata"]["name"] for i in first.invalid] == ["broken"] and not second.invalid
    del cluster.objects["InferenceModel"]["vision", "same"]
    assert ("vision", "same") not in reader.read(cluster.objects).models


def pod(*, managed: bool = False, node: str = "n", **status: Any) -> dict[str, Any]:
    labels = {"app.kubernetes.io/managed-by": "gpulet"} if managed else {}
    return {"metadata": {"name": "p", "labels": labels}, "spec": {"nodeName": node}, "status": status}


@pytest.mark.parametrize(
    ("old", "new", "matters"),
    [
        (None, pod(), True),
        (pod(node=""), pod(), True),
        (pod(), pod(phase="Succeeded"), True),
        (pod(), pod(phase="Running", conditions=[{"type": "Ready", "status": "True"}]), False),
        (pod(), pod(managed=True), True),
    ],
    ids=["new", "bound", "ended", "only ready", "ours"],
)
def test_of_foreign_pods_only_the_room_they_take_matters(
    old: dict[str, Any] | None, new: dict[str, Any], matters: bool
) -> None:
    assert pod_matters(old, new) is matters
