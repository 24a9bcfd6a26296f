"""When a figure is worth a write (design, section 2): a status that follows every wobble is a write storm."""

import re
from collections.abc import Mapping
from typing import Any

WRITE_PERIOD_S = 30.0
MOVED_FRACTION = 0.10

# Where status carries figures that follow the load, observed ones and what is planned and predicted from them.
# Everything else in it is structure and is written at once.
_FIGURES = (
    ("rate", "observed"),
    ("rate", "planned"),
    ("latency", "observedMeanMilliseconds"),
    ("latency", "observedPercentileMilliseconds"),
    ("latency", "predictedMilliseconds"),
    ("observedLatencyMilliseconds",),
    ("plannedRate",),
    ("predictedLatencyMilliseconds",),
)
# Reasons whose messages name the planned rate, on whichever condition: there numbers alone are no news.
_WITH_RATES = frozenset({"Fits", "RateBeyondCluster", "NoRoom"})
_NUMBER = re.compile(r"\d+(\.\d+)?(e[-+]?\d+)?")


def rounded(value: float | None) -> float | None:
    """Three significant digits: more would only tell noise."""
    return None if value is None else float(f"{value:.3g}")


def compact(status: Mapping[str, Any]) -> dict[str, Any]:
    """Without empty objects: of one whose fields have all gone, server-side apply would leave a null."""
    return {key: value for key, value in status.items() if value != {}}


def settle(previous: Mapping[str, Any], wanted: dict[str, Any], *, seconds_since_write: float) -> dict[str, Any]:
    """``wanted`` with its figures held back at their previous values unless they may be written now.

    They may if a figure moved by a tenth and the last write is 30 s old, or if anything else changes anyway: so the
    planned rate that is shown is never further from the one that is planned, and always that of the shares shown.
    """
    if _without_figures(previous) != _without_figures(wanted):
        return wanted
    if seconds_since_write >= WRITE_PERIOD_S and any(
        _moved(_get(previous, path), _get(wanted, path)) for path in _FIGURES
    ):
        return wanted
    return dict(previous)


def _moved(old: Any, new: Any) -> bool:
    if (old is None) != (new is None):
        return True
    if old is None:
        return False
    return bool(abs(new - old) > MOVED_FRACTION * max(abs(old), 1e-9))


def _get(status: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = status
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _without_figures(status: Mapping[str, Any]) -> dict[str, Any]:
    result = {k: dict(v) if isinstance(v, Mapping) else v for k, v in status.items()}
    for path in _FIGURES:
        target = result if len(path) == 1 else result.get(path[0])
        if isinstance(target, dict):
            target.pop(path[-1], None)
            if len(path) > 1 and not target:
                result.pop(path[0])
    if "conditions" in result:
        result["conditions"] = [_without_numbers(c) for c in result["conditions"]]
    return result


def _without_numbers(condition: Mapping[str, Any]) -> dict[str, Any]:
    if condition.get("reason") not in _WITH_RATES:
        return dict(condition)
    return dict(condition) | {"message": _NUMBER.sub("#", condition.get("message", ""))}
