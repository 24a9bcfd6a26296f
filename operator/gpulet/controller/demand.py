"""The rate to plan for: what the user states, or what is observed, without following every wobble. Pure."""

from gpulet.api.inferencemodel import InferenceModel
from gpulet.api.policy import Policy
from gpulet.controller.snapshot import FIRST_RATE_PER_S


def rate_to_plan(
    model: InferenceModel, *, observed_per_s: float | None, previous_per_s: float | None, policy: Policy
) -> float:
    """Requests per second before headroom.

    A stated rate holds. Else the observed rate is followed once it has left the previous one by more than the dead
    band; during an outage of the metrics (``observed_per_s`` None) the last value is held (failure case J9).
    """
    load = model.spec.load
    if load.requests_per_second is not None:
        rate = load.requests_per_second
    else:
        rate = previous_per_s if previous_per_s is not None else FIRST_RATE_PER_S
        if observed_per_s is not None and abs(observed_per_s - rate) > policy.dead_band * rate:
            rate = max(observed_per_s, 0.0)
    if load.min_requests_per_second is not None:
        rate = max(rate, load.min_requests_per_second)
    if load.max_requests_per_second is not None:
        rate = min(rate, load.max_requests_per_second)
    return rate
