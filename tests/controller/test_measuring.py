"""A ModelProfile's points are of the file and the product that it names, and of no other. Whole passes."""

import asyncio
import json
from typing import Any

import pytest

from tests.controller.cluster import A100, Cluster, inference_model, node, of_nodes, point, whole_gpu_slice
from tests.controller.passes import condition, one_pass, report

H100 = "NVIDIA-H100-80GB-HBM3"


@pytest.fixture
def cluster() -> Cluster:
    return of_nodes(3)


def add_profile(cluster: Cluster, **measure: Any) -> dict[str, Any]:
    """Of the model ``m``, whatever its file is."""
    spec = {"modelRef": {"name": "m"}, "measure": {"computePercents": [40, 80], "batches": [1, 2]} | measure}
    metadata = {"name": "p", "namespace": "vision"}
    return cluster.add(
        {"apiVersion": "gpulet.dev/v1alpha1", "kind": "ModelProfile", "metadata": metadata, "spec": spec}
    )


def probers(cluster: Cluster) -> list[tuple[str, str]]:
    return [k for k, g in cluster.objects["Gpulet"].items() if "profiling" in g["spec"] and k in cluster.objects["Pod"]]


def end_probers(cluster: Cluster, message: str | None = None) -> None:
    for key in probers(cluster):
        percent = cluster.objects["Gpulet"][key]["spec"]["computePercent"]
        cluster.end_pod(key, "prober", report(percent) if message is None else message)


def passes(cluster: Cluster, number: int) -> None:
    for _ in range(number):
        asyncio.run(one_pass(cluster))
        cluster.kubelet()


def measured(cluster: Cluster) -> None:
    for _ in range(6):
        passes(cluster, 1)
        end_probers(cluster)
    passes(cluster, 3)


def change_file(model: dict[str, Any]) -> None:
    model["spec"]["model"]["uri"] = "configmap://m/other.onnx"
    model["metadata"]["generation"] += 1


def shares(cluster: Cluster) -> list[tuple[str, str]]:
    return [key for key, gpulet in cluster.objects["Gpulet"].items() if "models" in gpulet["spec"]]


def test_points_go_with_the_file_they_were_measured_of(cluster: Cluster) -> None:
    model = cluster.add(inference_model("m", rate=5, slo_ms=300, profileRef={"name": "p"}))
    profile = add_profile(cluster)
    measured(cluster)
    assert profile["status"]["measured"] == 4
    assert profile["status"]["source"] == {"uri": "configmap://m/model.onnx", "format": "onnx"}
    (old,) = shares(cluster)
    change_file(model)
    asyncio.run(one_pass(cluster))
    assert condition(profile, "Measured")["status"] == "False"
    assert profile["status"]["points"] == []
    assert condition(model, "Profiled")["status"] == "False"
    passes(cluster, 2)
    assert shares(cluster) == [old], "nothing is planned with the other file's points"
    measured(cluster)
    assert profile["status"]["source"]["uri"] == "configmap://m/other.onnx"
    assert condition(profile, "Measured")["status"] == "True"
    passes(cluster, 4)
    assert condition(model, "Ready")["status"] == "True"
    assert old not in shares(cluster)
    cluster.writes.clear()
    passes(cluster, 2)
    assert cluster.writes == []


def test_a_prober_that_has_loaded_the_file_of_before_does_not_count(cluster: Cluster) -> None:
    model = cluster.add(inference_model("m", rate=5, slo_ms=300))
    profile = add_profile(cluster)
    passes(cluster, 3)
    before = {key for key in probers(cluster) if key[1].startswith("p-")}
    assert before
    change_file(model)
    end_probers(cluster)
    asyncio.run(one_pass(cluster))
    assert profile["status"]["measured"] == 0
    assert not before & cluster.objects["Gpulet"].keys()
    measured(cluster)
    assert profile["status"]["measured"] == 4


def test_a_broken_file_that_is_replaced_is_measured(cluster: Cluster) -> None:
    model = cluster.add(inference_model("m", rate=5, slo_ms=300, profileRef={"name": "p"}))
    profile = add_profile(cluster)
    passes(cluster, 3)
    empty = {"modelDigest": "", "runtime": "", "runtimeVersion": "", "points": []}
    end_probers(cluster, json.dumps(empty | {"error": "model.onnx is broken"}))
    passes(cluster, 2)
    assert condition(profile, "Measured")["reason"] == "ProfilingFailed"
    change_file(model)
    measured(cluster)
    assert condition(profile, "Measured")["status"] == "True"
    assert condition(model, "Ready")["status"] == "True"


def test_a_profile_that_names_no_product_is_of_one_all_the_same() -> None:
    """Each share is measured on a GPU of its own, and the nearest free one is of another kind."""
    mixed = Cluster()
    for name, product in (("node1", A100), ("node2", H100), ("node3", A100)):
        mixed.add(node(name))
        mixed.add(whole_gpu_slice(name, 0, product=product))
    mixed.add(inference_model("m", rate=5, slo_ms=300, products=[A100], profileRef={"name": "p"}))
    profile = add_profile(mixed)
    used = set()
    for _ in range(12):
        passes(mixed, 1)
        used |= {mixed.objects["Gpulet"][key]["spec"]["device"]["node"] for key in probers(mixed)}
        end_probers(mixed)
    assert profile["status"]["measured"] == 4
    assert used == {"node1", "node3"}


def test_points_of_another_product_do_not_answer_for_the_one_asked(cluster: Cluster) -> None:
    """Left by a version that let the product be changed."""
    cluster.add(inference_model("m", rate=5, slo_ms=300, profileRef={"name": "p"}))
    profile = add_profile(cluster, product=A100)
    elsewhere = [point(percent, batch, ms=5) | {"product": H100} for percent in (40, 80) for batch in (1, 2)]
    profile["status"] = {"points": elsewhere}
    passes(cluster, 1)
    assert condition(profile, "Measured")["status"] == "False"
    measured(cluster)
    assert {p["product"] for p in profile["status"]["points"]} == {A100}
    assert profile["status"]["measured"] == 4
