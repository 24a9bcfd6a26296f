"""The checked-in CRDs: without drift, readable in kubectl, comparable with what a cluster serves."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpulet.api import crds
from gpulet.api.crds import DEFINITIONS, manifest, manifests, missing_fields

ROOT = Path(__file__).parent.parent.parent
_KNOWN_CONDITIONS = {"Ready", "Succeeded", "Measured", "Enforced", "ObjectiveMet"}


def test_the_checked_in_crds_are_those_of_the_models() -> None:
    assert crds.main(["check", str(ROOT / "crds")]) == 0


def test_drift_is_named_by_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert crds.main(["write", str(tmp_path)]) == 0
    assert crds.main(["check", str(tmp_path)]) == 0
    (tmp_path / "gpulets.yaml").write_text("edited by hand")
    (tmp_path / "tuningjobs.yaml").unlink()
    (tmp_path / "extra.yaml").write_text("")
    assert crds.main(["check", str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert all(name in told for name in ("gpulets.yaml", "tuningjobs.yaml", "extra.yaml", "make generate"))
    assert "inferencemodels.yaml" not in told


def test_names_collide_with_nobody() -> None:
    assert {d.kind.__name__: d.short_name for d in DEFINITIONS} == {
        "InferenceModel": "gim",
        "TuningJob": "gtj",
        "ModelProfile": "gmp",
        "Gpulet": "gpl",
    }
    assert all(crd["spec"]["names"]["categories"] == ["gpulet"] for crd in manifests().values())


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda d: d.plural)
def test_every_column_shows_something_that_exists(definition: crds.Definition) -> None:
    """A misspelt path is an empty column, for ever."""
    version = manifest(definition)["spec"]["versions"][0]
    fields = set(_paths(version["schema"]["openAPIV3Schema"]))
    for column in version["additionalPrinterColumns"]:
        path = column["jsonPath"]
        if path.startswith(".status.conditions["):
            type_, part = path.split('"')[1], path.rsplit(".", 1)[1]
            assert type_ in _KNOWN_CONDITIONS, path
            assert part in ("status", "reason"), path
        elif not path.startswith(".metadata."):
            assert path.replace("[0]", "").lstrip(".") in fields, path


def _paths(schema: dict[str, Any], above: str = "") -> Iterator[str]:
    for name, inner in schema.get("properties", {}).items():
        yield above + name
        yield from _paths(inner, f"{above}{name}.")
        yield from _paths(inner.get("items", {}), f"{above}{name}.")


def test_an_older_served_schema_is_told_by_field() -> None:
    """Failure case L3: a stale CRD prunes what the controller writes, in silence."""
    for definition in DEFINITIONS:
        assert missing_fields(manifest(definition)) == []
    served = copy.deepcopy(manifest(DEFINITIONS[0]))
    spec = served["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    del spec["sharing"]["properties"]["isolation"]
    del spec["podTemplate"]["properties"]["environment"]
    assert missing_fields(served) == [
        "spec.podTemplate.environment",
        "spec.podTemplate.environment[].name",
        "spec.podTemplate.environment[].value",
        "spec.sharing.isolation",
    ]
    served["spec"]["versions"][0]["served"] = False
    assert "spec.slo.latencyMilliseconds" in missing_fields(served)
    with pytest.raises(ValueError, match="of ours"):
        missing_fields({"metadata": {"name": "inferencemodels.inference.networking.x-k8s.io"}})
