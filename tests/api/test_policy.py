"""The policy file: faults are told with file, key and remedy, never passed over."""

from pathlib import Path

import pytest

from gpulet.api.policy import Policy, PolicyError, load_policy, read_policy


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("headrom: 0.2", "headrom: no such key: did you mean headroom?"),
        ("dead_band: 0.2", "dead_band: no such key: did you mean deadBand?"),
        ("zzz: 1", "zzz: no such key: remove it; known are deadBand"),
        ("profiling: {batch: [1]}", "profiling.batch: no such key: did you mean batches?"),
        ("headroom: '0.2'", "headroom: "),
        ("headroom: .nan", "headroom: "),
        ("headroom: -0.1", "headroom: "),
        ("periodSeconds: .inf", "periodSeconds: "),
        ("periodSeconds: 0", "periodSeconds: "),
        ("profiling: {computePercents: [0]}", "profiling.computePercents.0: "),
        ("profiling: {computePercents: [101]}", "profiling.computePercents.0: "),
        ("profiling: {computePercents: []}", "profiling.computePercents: "),
        ("profiling: {batches: 4}", "profiling.batches: "),
        ("tuning: {clientCpu: half}", "tuning.clientCpu: "),
        ("tuning: {output: 's3://bucket/tuned'}", "tuning.output: "),
        ("tuning: {output: 'pvc://store/../other'}", "tuning.output: "),
        ("images: {serving: ''}", "images.serving: "),
        ("prices: {NVIDIA-A100-SXM4-80GB: 0}", "prices.NVIDIA-A100-SXM4-80GB: "),
        ("profiling: null", "profiling: "),
        ("headroom: 0.1\nheadroom: 0.2", "key headroom is there twice"),
        ("headroom: [", "no YAML"),
        ("- headroom", "a list: write keys and values"),
    ],
)
def test_a_fault_is_told_with_file_and_key(text: str, told: str) -> None:
    """Failure cases G1, G2, G7, G9."""
    with pytest.raises(PolicyError) as error:
        read_policy(text, source="policy.yaml")
    assert str(error.value).startswith("policy.yaml: ")
    assert told in str(error.value)


def test_all_faults_of_a_file_are_told_at_once() -> None:
    with pytest.raises(PolicyError) as error:
        read_policy("headrom: 1\nperiodSeconds: 0\nimages: {server: x}", source="p")
    assert len(str(error.value).splitlines()) == 3


def test_an_empty_file_is_the_default_policy_and_a_key_changes_itself_alone() -> None:
    assert read_policy("", source="p") == Policy()
    assert read_policy("tuning: {servers: 3}", source="p") == Policy.model_validate({"tuning": {"servers": 3}})


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=r"gone\.yaml: cannot be read"):
        load_policy(tmp_path / "gone.yaml")
    (tmp_path / "here.yaml").write_text("headroom: 0.3")
    assert load_policy(tmp_path / "here.yaml").headroom == 0.3
