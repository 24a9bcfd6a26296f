"""`gpulet plan` as a user runs it: files in, tables, JSON, YAML and pictures out; no cluster."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from typer.testing import CliRunner

from gpulet.cli.main import app
from gpulet.cli.plan_drawn import DARK, LIGHT, Scheme

A100, H100 = "NVIDIA-A100-SXM4-80GB", "NVIDIA-H100-80GB-HBM3"
UUID = "GPU-00000000-0000-0000-0000-000000000001"


def obj(kind: str, name: str, spec: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    meta = {"name": name, "namespace": "vision"} | metadata
    return {"apiVersion": "gpulet.dev/v1alpha1", "kind": kind, "metadata": meta, "spec": spec}


def model(name: str, latency_ms: float = 400, rate: float = 2, profile: str = "p") -> dict[str, Any]:
    return obj(
        "InferenceModel",
        name,
        {
            "model": {"uri": f"configmap://{name}/model.onnx", "format": "onnx"},
            "slo": {"latencyMilliseconds": latency_ms, "percentile": 90},
            "load": {"requestsPerSecond": rate},
            "profileRef": {"name": profile},
        },
    )


def profile(product: str = A100, mig: str | None = None) -> dict[str, Any]:
    points = [
        {
            "product": product,
            "computePercent": percent,
            "batch": 1,
            "latencyMicroseconds": {"mean": 4e6 / percent, "p50": 4e6 / percent, "p99": 5e6 / percent},
            "throughputPerSecond": percent / 4,
            "memoryMebibytes": 2048,
        }
        | ({"mig": mig} if mig else {})
        for percent in ((100,) if mig else (20, 50, 100))
    ]
    return obj("ModelProfile", "p", {"points": points})


def resource_slice(uuid: str = UUID, node: str = "gpu-a") -> dict[str, Any]:
    attributes = {"type": "gpu", "uuid": uuid, "product": A100, "profile": "full"}
    device = {
        "name": "gpu-0",
        "attributes": {name: {"string": value} for name, value in attributes.items()} | {"index": {"int": 0}},
        "capacity": {"computePercent": {"value": "100"}, "memory": {"value": "80Gi"}, "clients": {"value": "48"}},
    }
    pool = {"name": f"{node}/{uuid.lower()}", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpulet.dev", "nodeName": node, "pool": pool, "devices": [device]}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": uuid}, "spec": spec}


def gpulet(name: str, percent: int, *, origin: str, serves: str) -> dict[str, Any]:
    spec = {
        "device": {"node": "gpu-a", "gpu": UUID},
        "computePercent": percent,
        "memory": "2Gi",
        "clients": 1,
        "models": [{"name": serves, "batch": 1}],
    }
    return obj("Gpulet", name, spec, labels={"gpulet.dev/origin": origin})


def write(folder: Path, *objects: dict[str, Any], name: str = "all.yaml") -> Path:
    (folder / name).write_text("\n---\n".join(json.dumps(o) for o in objects))
    return folder


def call(*arguments: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["plan", *map(str, arguments)])
    assert "Traceback" not in result.output
    return result.exit_code, result.output


def answer(*arguments: str | Path) -> dict[str, Any]:
    _, output = call(*arguments, "-o", "json")
    return json.loads(output)  # type: ignore[no-any-return]


def test_json_has_the_keys_that_scripts_rely_on(tmp_path: Path) -> None:
    found = answer(write(tmp_path, profile(), model("a"), model("b")), "--fleet", f"{A100}=4")
    assert {
        "gpus",
        "lowerBound",
        "boundKind",
        "solveSeconds",
        "rateFactor",
        "models",
        "gpulets",
        "steps",
    } <= found.keys()
    assert {"namespace", "name", "fits", "reason", "predictedLatencyMilliseconds"} <= found["models"][0].keys()
    assert {"node", "gpu", "mig", "computePercent", "memory", "models"} <= found["gpulets"][0].keys()
    assert found["rateFactor"] >= 1


def test_yaml_is_the_same_as_json(tmp_path: Path) -> None:
    write(tmp_path, profile(), model("a"))
    _, text = call(tmp_path, "--fleet", f"{A100}=1", "-o", "yaml")
    found, other = yaml.safe_load(text), answer(tmp_path, "--fleet", f"{A100}=1")
    assert found.keys() == other.keys()
    assert found["gpulets"] == other["gpulets"]


def test_a_rate_beyond_the_fleet_is_one_model_that_does_not_fit(tmp_path: Path) -> None:
    code, output = call(write(tmp_path, profile(), model("a", rate=400)), "--fleet", f"{A100}=1", "-o", "json")
    found = json.loads(output)
    assert code == 2
    (one,) = found["models"]
    assert not one["fits"]
    assert one["reason"].startswith("RateBeyondCluster")
    assert 0 < one["sustainableRatePerSecond"] < 400
    assert found["rateFactor"] == 0
    assert found["gpulets"]


def test_the_highest_factor_of_all_rates_on_given_gpus(tmp_path: Path) -> None:
    write(tmp_path, profile(), model("a", rate=4), model("b", rate=1))
    found = answer(tmp_path, "--fleet", f"{A100}=3", "--objective", "rate")
    assert found["rateFactor"] > 1
    assert found["rateFactor"] <= found["rateFactorBound"]
    # What is planned for that factor carries it: both models at the scaled rates, headroom (10 %) included.
    sustained = {m["name"]: m["sustainableRatePerSecond"] for m in found["models"]}
    assert sustained["a"] >= 4 * 1.1 * found["rateFactor"] - 1e-2
    assert sustained["b"] >= 1 * 1.1 * found["rateFactor"] - 1e-2
    assert found["rateFactor"] >= answer(tmp_path, "--fleet", f"{A100}=3")["rateFactor"] * 0.99


def test_a_factor_below_one_is_a_no_that_names_the_remedy(tmp_path: Path) -> None:
    write(tmp_path, profile(), model("a", rate=400))
    code, output = call(tmp_path, "--fleet", f"{A100}=1", "--objective", "rate", "-o", "json")
    found = json.loads(output)
    assert code == 2
    assert 0 < found["rateFactor"] < 1
    assert "add GPUs or lower the rates" in found["models"][0]["reason"]


def test_given_slices_are_the_gpus(tmp_path: Path) -> None:
    write(tmp_path, profile(), model("a"), resource_slice())
    found = answer(tmp_path)
    assert [(g["node"], g["gpu"]) for g in found["gpulets"]] == [("gpu-a", UUID)]


def test_a_manual_gpulet_is_taken(tmp_path: Path) -> None:
    write(tmp_path, profile(), model("a"), resource_slice(), gpulet("hand", 60, origin="manual", serves="other"))
    code, output = call(tmp_path, "-o", "json")
    assert code == 2  # half a GPU is needed
    assert not json.loads(output)["models"][0]["fits"]


def test_what_exists_stays_where_it_is(tmp_path: Path) -> None:
    write(tmp_path, profile(), model("a"), resource_slice(), resource_slice("GPU-2", "gpu-b"))
    write(tmp_path, gpulet("a-1", 50, origin="plan", serves="a"), name="more.yaml")
    found = answer(tmp_path)
    assert [(g["gpu"], g["computePercent"]) for g in found["gpulets"]] == [(UUID, 50)]


def test_the_steps_lead_from_what_exists_to_the_plan(tmp_path: Path) -> None:
    """The half GPU that exists is too slow for the new objective."""
    write(tmp_path, profile(), model("a", latency_ms=100), resource_slice(), resource_slice("GPU-2", "gpu-b"))
    write(tmp_path, gpulet("a-1", 50, origin="plan", serves="a"), name="more.yaml")
    found = answer(tmp_path)
    kinds = [step["kind"] for step in found["steps"]]
    assert kinds.index("create") < kinds.index("wait") < kinds.index("switch") < kinds.index("drain")
    created, deleted = (
        {(s["gpulet"]["gpu"], s["gpulet"]["computePercent"]) for s in found["steps"] if s["kind"] == kind}
        for kind in ("create", "delete")
    )
    (planned,) = [(share["gpu"], share["computePercent"]) for share in found["gpulets"]]
    assert planned[1] == 100
    assert ({(UUID, 50)} | created) - deleted == {planned}
    assert [step["stage"] for step in found["steps"]] == sorted(step["stage"] for step in found["steps"])
    assert all(step["reason"] for step in found["steps"])


def test_a_planned_world_needs_no_steps(tmp_path: Path) -> None:
    write(tmp_path, profile(), model("a"), resource_slice())
    write(tmp_path, gpulet("a-1", 50, origin="plan", serves="a"), name="more.yaml")
    assert answer(tmp_path)["steps"] == []


def test_a_list_as_kubectl_writes_it_is_read(tmp_path: Path) -> None:
    items = [profile(), model("a"), resource_slice()]
    write(tmp_path, {"apiVersion": "v1", "kind": "List", "items": items}, name="all.json")
    assert answer(tmp_path)["gpus"] == 1


def test_inference_models_of_other_projects_are_passed_over(tmp_path: Path) -> None:
    other = model("theirs") | {"apiVersion": "inference.networking.x-k8s.io/v1alpha2"}
    found = answer(write(tmp_path, profile(), model("ours"), other), "--fleet", f"{A100}=1")
    assert [m["name"] for m in found["models"]] == ["ours"]


def test_a_fleet_may_name_a_product_twice(tmp_path: Path) -> None:
    write(tmp_path, profile(), *(model(f"m{i}", latency_ms=100) for i in range(3)))
    found = answer(tmp_path, "--fleet", f"{A100}=1", "--fleet", f"{A100}=2")
    assert len({g["gpu"] for g in found["gpulets"]}) == found["gpus"] == 3


def test_a_fleet_in_mig_mode_is_cut(tmp_path: Path) -> None:
    found = answer(write(tmp_path, profile(mig="3g.40gb"), model("a")), "--fleet", f"{A100}:mig=1")
    (share,) = found["gpulets"]
    assert share["mig"]["profile"] == "3g.40gb"


@pytest.mark.parametrize(
    ("objects", "says"),
    [
        ([model("b") | {"spec": {}}], "bad.yaml: InferenceModel vision/b: spec.model"),
        ([{**model("a"), "metadata": {}}], "bad.yaml: InferenceModel without metadata.name: name it"),
        ([{**resource_slice(), "spec": {"driver": "gpulet.dev"}}], f"bad.yaml: ResourceSlice {UUID}: spec: no 'pool'"),
        ([model("a", rate=1)], "bad.yaml: InferenceModel vision/a: another one of this name is in"),
        ([gpulet("g", 200, origin="plan", serves="a")], "bad.yaml: Gpulet vision/g: spec.computePercent"),
    ],
)
def test_bad_input_names_file_object_and_field(tmp_path: Path, objects: list[dict[str, Any]], says: str) -> None:
    write(tmp_path, profile(), model("a"), name="all.yaml")
    write(tmp_path, *objects, name="bad.yaml")
    code, output = call(tmp_path, "--fleet", f"{A100}=1")
    assert code == 1
    assert says in output


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"\xff\xfe\x00", "cannot be read"), (b"kind: [", "cannot be read"), (b"", "no InferenceModel")],
)
def test_a_file_that_is_none_is_named(tmp_path: Path, content: bytes, says: str) -> None:
    file = tmp_path / "odd.yaml"
    file.write_bytes(content)
    code, output = call(file, write(tmp_path, profile(), name="p.yaml") / "p.yaml", "--fleet", f"{A100}=1")
    assert code == 1
    assert says in output


@pytest.mark.parametrize(
    ("fleet", "says"),
    [
        (f"{H100}:mig=1", f"write {H100}=COUNT"),
        (f"{A100}=0", "a count from 1"),
        (f"{A100}=²", "a count from 1"),
        ("=3", "unknown product"),
    ],
)
def test_a_fleet_that_cannot_be_understood_says_what_to_write(tmp_path: Path, fleet: str, says: str) -> None:
    code, output = call(write(tmp_path, profile(), model("a")), "--fleet", fleet)
    assert code == 1
    assert says in " ".join(output.split())


@pytest.fixture
def drawn(tmp_path: Path) -> ElementTree.Element:
    for name in "acd":
        write(tmp_path, model(name), name=f"{name}.yaml")
    write(tmp_path, profile(), resource_slice(), resource_slice("GPU-2", "gpu-b"), resource_slice("GPU-3", "gpu-c"))
    _, text = call(tmp_path, "-o", "svg")
    return ElementTree.fromstring(text)


SVG = "{http://www.w3.org/2000/svg}"


def test_the_picture_has_a_bar_for_each_share_as_wide_as_it_is(drawn: ElementTree.Element) -> None:
    shares = [r for r in drawn.iter(f"{SVG}rect") if "share" in r.attrib["class"]]
    (bar, *_) = [r for r in drawn.iter(f"{SVG}rect") if r.attrib["class"] == "free"]
    assert len(shares) == 3
    for share in shares:
        assert float(share.attrib["width"]) == pytest.approx(float(bar.attrib["width"]) / 2, abs=1)
        assert float(share.attrib["x"]) + float(share.attrib["width"]) <= float(bar.attrib["x"]) + 937


def test_the_picture_can_be_heard(drawn: ElementTree.Element) -> None:
    assert drawn.attrib["role"] == "img"
    assert drawn.find(f"{SVG}title") is not None
    titles = [t.text or "" for g in drawn.iter(f"{SVG}g") for t in g.iter(f"{SVG}title")]
    assert sorted(title.split(":")[0] for title in titles) == ["vision/a", "vision/c", "vision/d"]
    texts = " ".join(t.text or "" for t in drawn.iter(f"{SVG}text"))
    assert "vision/a: 50 %" in texts
    assert "1 GPU is empty" in texts


@pytest.mark.parametrize("output", ["svg", "html"])
def test_a_picture_loads_nothing_and_follows_light_and_dark(tmp_path: Path, output: str) -> None:
    write(tmp_path, profile(), model("a"), model("late", latency_ms=1))
    code, text = call(tmp_path, "--fleet", f"{A100}=1", "-o", output)
    assert code == 2
    assert "prefers-color-scheme: dark" in text
    outside = text.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not any(word in outside for word in ("http:", "https:", "url(", "@import", "<script", "<link", "src="))


def test_the_page_says_why_a_model_does_not_fit(tmp_path: Path) -> None:
    write(tmp_path, profile(), model("late", latency_ms=1))
    _, text = call(tmp_path, "--fleet", f"{A100}=1", "-o", "html")
    assert "ObjectiveInfeasible" in text
    assert text.startswith("<!doctype html>")
    assert '<th scope="col">' in text


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", [LIGHT, DARK])
def test_text_has_contrast_on_every_colour(scheme: Scheme) -> None:
    """4.5 to 1, the ratio of WCAG 2 for small text."""
    pairs = [(scheme.ink, ground) for ground in (scheme.ground, scheme.free, *scheme.shares())]
    for text, ground in [*pairs, (scheme.dim, scheme.ground)]:
        dark, light = sorted((_luminance(text), _luminance(ground)))
        assert (light + 0.05) / (dark + 0.05) >= 4.5
