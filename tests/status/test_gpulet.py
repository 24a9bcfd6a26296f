"""What a Gpulet's status says of its pod's obstacles."""

from typing import Any

from gpulet.status.gpulet import Observed, ready


def claim(*conditions: dict[str, Any]) -> dict[str, Any]:
    return {"status": {"devices": [{"driver": "gpulet.dev", "conditions": list(conditions)}]}}


PENDING = {"metadata": {"name": "m"}, "status": {"phase": "Pending"}}
REFUSED = {
    "type": "Ready",
    "status": "False",
    "reason": "PrepareRefused",
    "message": "isolation None: vision/x is there",
}


def test_the_nodes_no_is_told_in_its_own_words() -> None:
    fact = ready(Observed(claim=claim(REFUSED), pod=PENDING))
    assert (fact.status, fact.reason, fact.message) == ("False", "PrepareRefused", REFUSED["message"])


def test_a_share_that_is_made_only_starts() -> None:
    made = REFUSED | {"status": "True", "reason": "Prepared"}
    for seen in (None, claim(), claim(made)):
        assert ready(Observed(claim=seen, pod=PENDING)).reason == "Starting"
