"""When an observed figure is worth a write (design, section 2): a status that follows every wobble is a write storm."""

from collections.abc import Mapping
from typing import Any

WRITE_PERIOD_S = 30.0
MOVED_FRACTION = 0.10

# Where status carries observed figures: everything else in it is structure and is written at once.
_OBSERVED = (
    ("rate", "observed"),
    ("latency", "observedMeanMilliseconds"),
    ("latency", "observedPercentileMilliseconds"),
    ("observedLatencyMilliseconds",),
)


def rounded(value: float | None) -> float | None:
    """Three significant digits: more would only tell noise."""
    return None if value is None else float(f"{value:.3g}")


def compact(status: Mapping[str, Any]) -> dict[str, Any]:
    """Without empty objects: of one whose fields have all gone, server-side apply would leave a null."""
    return {key: value for key, value in status.items() if value != {}}


def settle(previous: Mapping[str, Any], wanted: dict[str, Any], *, seconds_since_write: float) -> dict[str, Any]:
    """``wanted`` with observed figures held back at their previous values unless they may be written now.

    They may if a figure moved by a tenth and the last write is 30 s old, or if anything else changes anyway.
    """
    if _without_figures(previous) != _without_figures(wanted):
        return wanted
    if seconds_since_write >= WRITE_PERIOD_S and any(
        _moved(_get(previous, path), _get(wanted, path)) for path in _OBSERVED
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
    for path in _OBSERVED:
        target = result if len(path) == 1 else result.get(path[0])
        if isinstance(target, dict):
            target.pop(path[-1], None)
            if len(path) > 1 and not target:
                result.pop(path[0])
    return result
