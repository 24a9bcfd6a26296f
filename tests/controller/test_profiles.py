"""Which profiles are made, measured, kept and dropped while a model's file changes. Whole passes."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from tests.controller.cluster import Cluster, given_profile, inference_model, node, whole_gpu_slice
from tests.controller.passes import NOW, condition, one_pass, report


def passes(cluster: Cluster, number: int, *, ready: bool = True) -> None:
    """Probers end as soon as they run; ``ready``: other pods become ready."""
    for _ in range(number):
        asyncio.run(one_pass(cluster))
        for profile in cluster.objects["ModelProfile"].values():
            made = NOW + timedelta(seconds=int(profile["metadata"]["uid"].removeprefix("uid-")))
            profile["metadata"]["creationTimestamp"] = made.isoformat()
        for key, gpulet in cluster.objects["Gpulet"].items():
            if "profiling" in gpulet["spec"] and key in cluster.objects["Pod"]:
                cluster.end_pod(key, "prober", report(gpulet["spec"]["computePercent"]))
        if ready:
            cluster.kubelet()


def change(model: dict[str, Any], version: int) -> None:
    model["spec"]["model"]["uri"] = f"configmap://m/v{version}.onnx"
    model["metadata"]["generation"] += 1


def versions(cluster: Cluster) -> set[str]:
    """Files that profiles exist of."""
    specs = [profile["spec"] for profile in cluster.objects["ModelProfile"].values()]
    return {spec["model"]["uri"].rsplit("/", 1)[-1] for spec in specs if "model" in spec}


def test_a_new_file_does_not_wait_for_the_measuring_of_the_old_one() -> None:
    cluster = Cluster()
    cluster.add(node("node1"))
    cluster.add(whole_gpu_slice("node1", 0))
    model = cluster.add(inference_model("m", rate=5, slo_ms=300))
    for _ in range(3):
        asyncio.run(one_pass(cluster))
        cluster.kubelet(ready=False)
    assert {g["spec"]["profiling"]["profile"] for g in cluster.objects["Gpulet"].values()}
    change(model, 2)
    for _ in range(3):
        asyncio.run(one_pass(cluster))
    assert versions(cluster) == {"v2.onnx"}
    assert condition(model, "Profiled")["reason"] == "Measuring"
    passes(cluster, 10)
    assert condition(model, "Ready")["status"] == "True"


def test_going_back_to_the_file_before_needs_no_new_measurement(cluster: Cluster) -> None:
    model = cluster.add(inference_model("m", rate=5, slo_ms=300))
    change(model, 1)
    passes(cluster, 10)
    change(model, 2)
    passes(cluster, 10)
    assert versions(cluster) == {"v1.onnx", "v2.onnx"}
    change(model, 1)
    cluster.writes.clear()
    passes(cluster, 6)
    assert condition(model, "Ready")["status"] == "True"
    assert not [w for w in cluster.writes if "ModelProfile" in w]
    cluster.writes.clear()
    passes(cluster, 2)
    assert cluster.writes == []


def test_the_profiles_of_the_last_two_files_are_kept_and_no_more(cluster: Cluster) -> None:
    model = cluster.add(inference_model("m", rate=5, slo_ms=300))
    for version in (1, 2, 3, 4, 5):
        change(model, version)
        passes(cluster, 16)
    assert versions(cluster) == {"v3.onnx", "v4.onnx", "v5.onnx"}


def test_the_profile_of_a_file_that_still_serves_is_kept_however_old_it_is(cluster: Cluster) -> None:
    for name in ("node3", "node4"):  # room to measure beside replacements that do not come up
        cluster.add(node(name))
        cluster.add(whole_gpu_slice(name, 0))
    model = cluster.add(inference_model("m", rate=5, slo_ms=300))
    change(model, 1)
    passes(cluster, 10)
    for version in (2, 3, 4):
        change(model, version)
        passes(cluster, 10, ready=False)
    assert versions(cluster) == {"v1.onnx", "v2.onnx", "v3.onnx", "v4.onnx"}
    passes(cluster, 6)
    assert condition(model, "Ready")["status"] == "True"
    assert versions(cluster) == {"v2.onnx", "v3.onnx", "v4.onnx"}


def test_what_the_model_does_not_own_is_nobody_s_to_delete(cluster: Cluster) -> None:
    """Not a user's own profile, nor one that bears our labels."""
    measure = {
        "model": {"uri": "configmap://m/own.onnx", "format": "onnx"},
        "measure": {"computePercents": [40], "batches": [1]},
    }
    own, labelled = given_profile("own"), given_profile("labelled")
    own["spec"] = labelled["spec"] = measure
    labelled["metadata"]["labels"] = {"app.kubernetes.io/managed-by": "gpulet", "gpulet.dev/model": "m"}
    cluster.add(own)
    cluster.add(labelled)
    model = cluster.add(inference_model("m", rate=5, slo_ms=300))
    passes(cluster, 10)
    change(model, 2)
    passes(cluster, 10)
    assert {"own", "labelled"} <= {name for _, name in cluster.objects["ModelProfile"]}
    assert condition(own, "Measured")["status"] == "True"


def test_a_given_profile_ends_the_measuring(cluster: Cluster) -> None:
    model = cluster.add(inference_model("m", rate=5, slo_ms=300))
    asyncio.run(one_pass(cluster))
    assert len(cluster.objects["ModelProfile"]) == 1
    cluster.add(given_profile("p"))
    model["spec"]["profileRef"] = {"name": "p"}
    passes(cluster, 3)
    assert set(cluster.objects["ModelProfile"]) == {("vision", "p")}
    assert not any("profiling" in g["spec"] for g in cluster.objects["Gpulet"].values())


@pytest.mark.parametrize("uri", ["s3://bucket/m.onnx", "https://example.com/m.onnx"])
def test_a_source_that_cannot_be_mounted_stalls_and_holds_no_share(cluster: Cluster, uri: str) -> None:
    """With a profile too: it says how fast the model is, not how to bring it."""
    cluster.add(given_profile("p"))
    source = {"uri": uri, "format": "onnx"}
    model = cluster.add(inference_model("m", rate=5, slo_ms=300, model=source, profileRef={"name": "p"}))
    passes(cluster, 3)
    stalled = condition(model, "Stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", "UnsupportedSource")
    assert "pvc://" in stalled["message"]
    assert condition(model, "Profiled")["status"] == "False"
    assert not cluster.objects["Gpulet"]
