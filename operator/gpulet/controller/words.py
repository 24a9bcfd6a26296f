"""What the programs in ended containers said: their termination messages. Pure."""

import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from gpulet.api.workload import ServeReport


def last_words(pod: Mapping[str, Any] | None) -> ServeReport | None:
    """The report with an error that a serving program of this pod ended with, now or before its last restart."""
    status = (pod or {}).get("status", {})
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        if container.get("ready"):
            continue
        for state in (container.get("state", {}), container.get("lastState", {})):
            ended = state.get("terminated") or {}
            try:
                report = ServeReport.model_validate(json.loads(ended.get("message") or ""))
            except (ValueError, ValidationError):
                continue
            if report.error:
                return report
    return None
