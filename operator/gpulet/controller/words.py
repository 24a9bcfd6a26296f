"""What the programs in ended containers said: their termination messages. Pure."""

import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from gpulet.api.workload import ServeReport


def last_words(pod: Mapping[str, Any] | None) -> str | None:
    """The error that a serving program of this pod ended with, now or before its last restart."""
    status = (pod or {}).get("status", {})
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        if container.get("ready"):
            continue
        for state in (container.get("state", {}), container.get("lastState", {})):
            ended = state.get("terminated") or {}
            try:
                error = ServeReport.model_validate(json.loads(ended.get("message") or "")).error
            except (ValueError, ValidationError):
                continue
            if error:
                return error
    return None
