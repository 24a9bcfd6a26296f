"""Reading what Triton exports: counters for rates and means, summaries for percentiles. Pure but for the parser."""

import math
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

_COUNTERS = {
    "nv_inference_request_success": "requests",
    "nv_inference_count": "inferences",
    "nv_inference_exec_count": "executions",
    "nv_inference_request_duration_us": "duration_us",
    "nv_inference_queue_duration_us": "queue_us",
}
_SUMMARY = "nv_inference_request_summary_us"


@dataclass(frozen=True)
class Scrape:
    """Of one model on one server: counters since its start, latency quantiles over Triton's own sliding window."""

    at_s: float
    """Monotonic time of the reader."""
    requests: float = 0.0
    inferences: float = 0.0
    executions: float = 0.0
    duration_us: float = 0.0
    queue_us: float = 0.0
    quantiles_us: tuple[tuple[float, float], ...] = ()
    """(quantile, microseconds)."""


@dataclass(frozen=True)
class Window:
    """What happened between two scrapes."""

    requests: int
    seconds: float
    mean_ms: float | None
    percentile_ms: float | None


def parse(text: str, model: str, *, at_s: float) -> Scrape:
    """The figures of ``model`` in Triton's text exposition; zeros for a model that has none yet. Raises ValueError."""
    values: dict[str, float] = {}
    quantiles: dict[float, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.labels.get("model") != model:
                continue
            field = _COUNTERS.get(sample.name.removesuffix("_total"))
            if field is not None:
                values[field] = values.get(field, 0.0) + sample.value
            elif sample.name == _SUMMARY and "quantile" in sample.labels and not math.isnan(sample.value):
                quantiles[float(sample.labels["quantile"])] = sample.value
    return Scrape(at_s=at_s, quantiles_us=tuple(sorted(quantiles.items())), **values)


def window(first: Scrape, last: Scrape, *, quantile: float) -> Window:
    """Between two scrapes of one server. A counter that fell was reset: the window then begins at the restart."""
    if last.requests < first.requests:
        first = Scrape(at_s=first.at_s)
    requests = last.requests - first.requests
    seconds = max(last.at_s - first.at_s, 1e-9)
    mean_ms = (last.duration_us - first.duration_us) / requests / 1000 if requests > 0 else None
    percentile_ms = None
    if requests > 0:
        percentile_ms = next(
            (us / 1000 for q, us in last.quantiles_us if math.isclose(q, quantile, abs_tol=1e-6)), None
        )
    return Window(int(requests), seconds, mean_ms, percentile_ms)
