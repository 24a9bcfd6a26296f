"""What an ended merge pod said. Pure."""

import json
from typing import Any

from pydantic import ValidationError

from gpulet.api.workload import TuneReport
from gpulet.controller.world import deleting
from gpulet.status.gpulet import disrupted


def merge_report(pod: dict[str, Any] | None) -> TuneReport | None:
    """The report of an ended merge; an end without a word is an error of its own. None while it runs."""
    if pod is None or deleting(pod) or disrupted(pod):
        return None
    for container in pod.get("status", {}).get("containerStatuses") or ():
        ended = container.get("state", {}).get("terminated")
        if container["name"] != "merge" or ended is None:
            continue
        try:
            return TuneReport.model_validate(json.loads(ended.get("message") or ""))
        except (ValueError, ValidationError):
            return TuneReport(
                reason="MergeFailed",
                error=f"merge ended with code {ended.get('exitCode')} and no report: see the log of its pod",
            )
    return None
