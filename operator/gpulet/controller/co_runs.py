"""What ModelProfiles say of a model beside others. Pure."""

from gpulet.api.modelprofile import GpuUse, ModelProfile
from gpulet.model.profile import CoRun, Resident


def co_runs_of(profile: ModelProfile) -> tuple[CoRun, ...]:
    """In the order of the spec."""
    return tuple(
        CoRun(
            _resident(given.product, given.model),
            tuple(_resident(given.product, n) for n in given.neighbours),
            given.slowdown,
        )
        for given in profile.spec.co_runs
    )


def _resident(product: str, use: GpuUse) -> Resident:
    return Resident(product, use.compute_percent, use.l2_cache, use.memory_bandwidth, use.active)
