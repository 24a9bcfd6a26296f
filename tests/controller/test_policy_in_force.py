"""A policy that cannot be read harms nothing that serves, and its ConfigMap says so."""

from typing import Any

from gpulet.api.policy import Policy
from gpulet.controller.policy_in_force import PolicyInForce


def config_map(text: str) -> dict[str, Any]:
    return {"metadata": {"name": "gpulet-policy", "namespace": "gpulet-system"}, "data": {"policy.yaml": text}}


def test_the_last_good_policy_holds_while_the_new_one_cannot_be_read() -> None:
    held = PolicyInForce()
    assert held.read(config_map("headroom: 0.3")) == Policy(headroom=0.3) and held.fault is None
    assert held.read(config_map("headrom: 0.1")) == Policy(headroom=0.3)
    assert held.fault is not None and held.fault.reason == "InvalidPolicy"
    assert held.fault.regarding["kind"] == "ConfigMap"
    assert "did you mean headroom" in held.fault.message and "the last good one holds" in held.fault.message
    assert held.read(config_map("headroom: 0.2")) == Policy(headroom=0.2) and held.fault is None


def test_after_a_restart_nothing_is_planned_under_defaults_in_place_of_a_policy_that_cannot_be_read() -> None:
    held = PolicyInForce()
    assert held.read(config_map("headroom: lots")) is None
    assert held.fault is not None and "nothing is planned" in held.fault.message
    assert held.read(config_map("headroom: 0.2")) == Policy(headroom=0.2) and held.fault is None


def test_no_config_map_means_the_defaults_but_its_deletion_changes_nothing() -> None:
    assert PolicyInForce().read(None) == Policy()
    held = PolicyInForce()
    held.read(config_map("headroom: 0.3"))
    assert held.read(None) == Policy(headroom=0.3)
