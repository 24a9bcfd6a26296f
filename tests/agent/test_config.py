"""The agent's configuration: defaults that work, errors that name field and remedy."""

from pathlib import Path
from typing import Any

import pytest

from gpulet.agent.config import ConfigurationError, load
from gpulet.agent.main import make_shares, self_test

POD = {"NODE_NAME": "node-1", "POD_UID": "0a1b"}


def _load(tmp_path: Path, text: str, environment: dict[str, str] = POD) -> Any:
    path = tmp_path / "agent.yaml"
    path.write_text(text)
    return load(path, environment)


@pytest.mark.case("A3", "A10")
def test_empty_configuration_works(tmp_path: Path) -> None:
    """Cases A3, A10: no GPU is a state, not an error."""
    config, identity = _load(tmp_path, "")
    assert config.gpus_of("node-1") == []
    assert str(config.mps_directory) == "/run/gpulet/mps"
    assert identity.node_name == "node-1"


def test_a_nodes_own_list_replaces_the_common_one_by_exact_name(tmp_path: Path) -> None:
    text = "gpus: [{product: a}]\nnodes: {node-1: [{product: b, count: 2}], node-10: []}"
    config, _ = _load(tmp_path, text)
    assert [g.product for g in config.gpus_of("node-1")] == ["b"]
    assert config.gpus_of("node-10") == []
    assert [g.product for g in config.gpus_of("node-100")] == ["a"]


@pytest.mark.case("A10", "A18", "G9", "G11")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gpu: []", "gpu: Extra inputs are not permitted"),
        ("gpus: [{product: a, millicore: 1}]", "gpus.0.millicore"),
        ("gpus: [{product: a, count: 0}]", "gpus.0.count"),
        ("source: cuda", "source"),
        ("verifyPeriodSeconds: 0", "verifyPeriodSeconds"),
        ("mpsDirectory: /" + "x" * 60, "mpsDirectory is too long"),
        ("[1", "agent.yaml"),
    ],
)
def test_bad_configuration_names_file_and_field(tmp_path: Path, text: str, said: str) -> None:
    """Cases A10, A18, G9, G11."""
    with pytest.raises(ConfigurationError, match=said) as error:
        _load(tmp_path, text)
    assert "\n" not in str(error.value), "a pod's status and gpulet doctor show its last line"


def test_missing_file_and_missing_identity_name_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="mount ConfigMap gpulet-agent"):
        load(tmp_path / "none.yaml", POD)
    with pytest.raises(ConfigurationError, match="POD_UID must come from the pod's"):
        _load(tmp_path, "", {"NODE_NAME": "node-1"})


@pytest.mark.case("A18")
def test_self_test_names_the_folder_that_cannot_be_used(rig: Any) -> None:
    """Case A18."""
    tmp_path = rig.root
    (tmp_path / "file").write_text("")
    folders = "".join(f"{f}Directory: {tmp_path}/{f}\n" for f in ("kubelet", "mps", "state"))
    config, _ = _load(tmp_path, f"{folders}cdiDirectory: {tmp_path}/file\n")
    with pytest.raises(ConfigurationError, match=r"cdiDirectory: .*/file cannot be written to"):
        self_test(config)
    config, _ = _load(tmp_path, f"{folders}cdiDirectory: {tmp_path}/cdi\n")
    self_test(config)
    assert not list((tmp_path / "mps").iterdir())


def test_unknown_product_stops_the_agent_with_the_known_ones(tmp_path: Path) -> None:
    config, identity = _load(tmp_path, f"gpus: [{{product: RTX}}]\nstateDirectory: {tmp_path}")
    with pytest.raises(ValueError, match="NVIDIA-A100-SXM4-80GB"):
        make_shares(config, identity)


@pytest.mark.case("G7")
@pytest.mark.parametrize("text", ["ignoredXids: [abc]", "ignoredXids: 79", "ignoredXids: [-1]", "ignoredXids: '13,31'"])
def test_a_malformed_list_of_xids_is_refused_and_switches_nothing_off(tmp_path: Path, text: str) -> None:
    """Case G7."""
    with pytest.raises(ConfigurationError, match="ignoredXids"):
        _load(tmp_path, text)
