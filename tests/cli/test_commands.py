"""The commands as a user runs them: what they print, their JSON, their exit codes; no cluster."""

import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from gpulet.cli import explain, map, tables, top
from gpulet.cli.main import app
from gpulet.cli.manifests import manifests
from gpulet.controller.read import read_world
from gpulet.controller.world import World

A100 = "NVIDIA-A100-SXM4-80GB"
UUID = "GPU-00000000-0000-0000-0000-000000000001"


def model(name: str, latency_ms: float, *, profile: str | None = "p") -> dict[str, Any]:
    spec: dict[str, Any] = {
        "model": {"uri": f"configmap://{name}/model.onnx", "format": "onnx"},
        "slo": {"latencyMilliseconds": latency_ms, "percentile": 90},
        "load": {"requestsPerSecond": 2},
    }
    if profile:
        spec["profileRef"] = {"name": profile}
    return _object("InferenceModel", name, spec)


def profile() -> dict[str, Any]:
    points = [
        {
            "product": A100,
            "computePercent": percent,
            "batch": 1,
            "latencyMicroseconds": {"mean": 4e6 / percent, "p50": 4e6 / percent, "p99": 5e6 / percent},
            "throughputPerSecond": percent / 4,
            "memoryMebibytes": 2048,
        }
        for percent in (20, 50, 100)
    ]
    return _object("ModelProfile", "p", {"points": points})


def _object(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "vision"}
    return {"apiVersion": "gpulet.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}


def write(folder: Path, *objects: dict[str, Any]) -> Path:
    (folder / "all.yaml").write_text("\n---\n".join(json.dumps(o) for o in objects))
    return folder


def call(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


def test_a_plan_of_manifests_for_a_fleet(tmp_path: Path) -> None:
    write(tmp_path, profile(), model("a", 400), model("b", 400))
    code, output = call("plan", str(tmp_path), "--fleet", f"{A100}=4", "-o", "json")
    answer = json.loads(output)
    assert code == 0
    assert answer["gpus"] == answer["lowerBound"] == 1
    assert answer["boundKind"] in ("proven", "pattern", "volume")
    assert {(m["namespace"], m["name"], m["fits"]) for m in answer["models"]} == {
        ("vision", "a", True),
        ("vision", "b", True),
    }
    assert [g["computePercent"] for g in answer["gpulets"]] == [50, 50]
    assert {g["gpu"] for g in answer["gpulets"]} == {answer["gpulets"][0]["gpu"]}


def test_what_does_not_fit_is_named_with_a_reason_and_exit_code_2(tmp_path: Path) -> None:
    write(tmp_path, profile(), model("fine", 400), model("impossible", 20), model("unknown", 400, profile=None))
    code, output = call("plan", str(tmp_path), "--fleet", f"{A100}=4", "-o", "json")
    models = {m["name"]: m for m in json.loads(output)["models"]}
    assert code == 2
    assert models["fine"]["fits"]
    assert not models["impossible"]["fits"]
    assert models["impossible"]["reason"].startswith("ObjectiveInfeasible")
    assert models["unknown"]["reason"].startswith("NotProfiled")


def test_the_examples_are_planned_offline_and_what_is_missing_there_is_said() -> None:
    examples = Path(__file__).parents[2] / "examples"
    _, output = call("plan", str(examples), "--fleet", f"{A100}=4", "-o", "json")
    models = {m["name"]: m for m in json.loads(output)["models"]}
    assert models["resnet50"]["fits"]
    assert "nothing is measured offline: write its points" in models["shelf"]["reason"]
    _, output = call("plan", str(examples / "inferencemodel.yaml"), "--fleet", f"{A100}=4", "-o", "json")
    (alone,) = json.loads(output)["models"]
    assert alone["reason"].endswith(
        "no ModelProfile resnet50-a100 in namespace default: add the file that has it to PATH"
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["plan"], "PATH: give manifests"),
        (["plan", "{folder}"], "--fleet: give the GPUs"),
        (["plan", "{folder}", "--fleet", "GTX=2"], "unknown product GTX"),
        (["plan", "{folder}", "--fleet", f"{A100}=many"], "write PRODUCT=COUNT"),
        (["plan", "{folder}/absent.yaml", "--fleet", f"{A100}=1"], "cannot be read"),
        (["bench", "http://127.0.0.1:1/v2/models/m", "--rate", "0", "--seconds", "1"], "--rate 0: more than 0"),
        (["bench", "http://127.0.0.1:1/v2/models/m", "--rate", "1", "--seconds", "1"], "no answer"),
        (["top", "--once", "--kubeconfig", "{folder}/absent"], "the kubeconfig cannot be used"),
    ],
)
def test_bad_input_is_one_line_that_names_the_argument_and_exit_code_1(
    tmp_path: Path, arguments: list[str], says: str
) -> None:
    write(tmp_path, profile(), model("a", 400))
    code, output = call(*(a.format(folder=tmp_path) for a in arguments))
    assert code == 1
    assert says in output
    assert "Traceback" not in output


def test_a_broken_manifest_names_object_and_field(tmp_path: Path) -> None:
    broken = model("a", 400)
    broken["spec"]["slo"]["percentile"] = 100
    write(tmp_path, broken)
    code, output = call("plan", str(tmp_path), "--fleet", f"{A100}=1")
    assert code == 1
    assert "vision/a" in output
    assert "slo.percentile" in output


@pytest.fixture
def world() -> World:
    """One model that serves in half a GPU, one that is measured in a third of the same."""
    kinds = "InferenceModel TuningJob ModelProfile Gpulet ResourceClaim Pod Service Job Node ResourceSlice"
    objects: dict[str, dict[Any, Any]] = {k: {} for k in (*kinds.split(), "PersistentVolumeClaim", "PersistentVolume")}
    since = datetime(2026, 1, 1, tzinfo=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def condition(type_: str, status: str, reason: str) -> dict[str, str]:
        return {"type": type_, "status": status, "reason": reason, "lastTransitionTime": since, "message": "because"}

    serving = model("a", 400)
    serving["status"] = {
        "conditions": [
            condition("Ready", "True", "Ready"),
            condition("ObjectiveMet", "False", "LatencyAboveObjective"),
        ],
        "latency": {"predictedMilliseconds": 180, "observedPercentileMilliseconds": 412},
        "gpulets": [{"name": "a-1", "node": "n", "gpu": UUID, "computePercent": 50, "ready": True}],
    }
    share = {"device": {"node": "n", "gpu": UUID}, "memory": "2Gi", "clients": 1}
    served = _object("Gpulet", "a-1", share | {"computePercent": 50, "models": [{"name": "a", "batch": 1}]})
    served["metadata"]["labels"] = {"gpulet.dev/origin": "plan", "gpulet.dev/model": "a"}
    measured = _object("Gpulet", "b-1", share | {"computePercent": 33, "profiling": {"profile": "b", "batches": [1]}})
    pod = {
        "metadata": {"name": "a-1", "namespace": "vision"},
        "status": {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available"}]},
    }
    for item in (serving, served, measured, profile()):
        objects[item["kind"]]["vision", item["metadata"]["name"]] = item
    objects["Pod"]["vision", "a-1"] = pod
    objects["ResourceSlice"]["", "s"] = _slice()
    return read_world(objects)


def _slice() -> dict[str, Any]:
    attributes = {"type": "gpu", "uuid": UUID, "product": A100, "profile": "full"}
    device = {
        "name": "gpu-0",
        "attributes": {name: {"string": value} for name, value in attributes.items()} | {"index": {"int": 0}},
        "capacity": {"computePercent": {"value": "100"}, "memory": {"value": "80Gi"}, "clients": {"value": "48"}},
    }
    pool = {"name": "n/gpu", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpulet.dev", "nodeName": "n", "pool": pool, "devices": [device]}
    return {"metadata": {"name": "s"}, "spec": spec}


def test_the_map_shows_each_share_at_its_size(world: World) -> None:
    _, bar, *legend = map.text(map.placed(world))
    assert bar.count("A") == 25  # of 50 letters
    assert bar.count("B") in (16, 17)
    assert "17 % free" in bar
    assert ["vision/a-1" in legend[0], "vision/b-1" in legend[1]] == [True, True]


def test_explain_repeats_conditions_and_the_schedulers_words(world: World) -> None:
    found = explain.facts(world, explain.find_model(world, "vision/a"))
    said = "\n".join(explain.text(found))
    assert "LatencyAboveObjective: because" in said
    assert "the scheduler says: 0/2 nodes are available" in said
    assert "50 % of n gpu-0" in said
    assert found["profile"]["source"] == "p"


def test_explain_of_an_unknown_model_names_those_there_are(world: World) -> None:
    with pytest.raises(explain.UnknownModelError, match="vision/a"):
        explain.find_model(world, "vision/zebra")


def test_without_a_terminal_only_changes_are_said(world: World) -> None:
    first = top.lines(world)
    assert list(top.changes(first, top.lines(world))) == []
    assert list(top.changes(first, {k: v for k, v in first.items() if "b-1" not in k})) == ["gpulet vision/b-1: gone"]
    assert "ObjectiveMet=False" in first["model vision/a"]


def test_the_table_shows_planned_and_observed_latency(world: World) -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(tables.tables(world))
    text = console.export_text()
    assert "p90 <= 400 ms" in text
    assert "180" in text
    assert "412" in text


def test_offline_manifests_of_other_kinds_are_passed_over(tmp_path: Path) -> None:
    write(tmp_path, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "vision"}}, profile())
    assert list(manifests([tmp_path]).world().profiles) == [("vision", "p")]
