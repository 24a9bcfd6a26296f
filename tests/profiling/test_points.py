"""What runs say, and the report's size."""

import pytest

from gpulet.api.workload import ProfileReport, ProfileSpec
from gpulet.profiling.points import MESSAGE_LIMIT_BYTES, Runs, message_of, point

SPEC = ProfileSpec(model="net", product="P", compute_percent=50, memory_mebibytes=1024, batches=[8])


def test_latency_is_of_a_batch_and_throughput_of_requests() -> None:
    measured = point(SPEC, 8, Runs([1000.0] * 99 + [2000.0], elapsed_s=0.125))
    assert measured.latency_microseconds.mean == 1010.0
    assert measured.latency_microseconds.p50 == 1000.0
    assert 1000.0 < measured.latency_microseconds.p99 < 1020.0
    assert measured.throughput_per_second == 6400.0


def test_one_slow_run_is_a_point_too() -> None:
    assert point(SPEC, 8, Runs([5e6], elapsed_s=5.0)).latency_microseconds.p99 == 5e6


def report(points: int, product: str) -> ProfileReport:
    """With figures of the greatest width."""
    spec = SPEC.model_copy(update={"product": product, "mig": "3g.40gb", "memory_mebibytes": 81920})
    made = [point(spec, 65536, Runs([1234567.89, 1234667.91], elapsed_s=2.47)) for _ in range(points)]
    return ProfileReport(
        model_digest="sha256:" + "0" * 64, runtime="triton", runtime_version="nvidia-pytriton 0.7.0", points=made
    )


def test_the_most_batches_that_a_profile_may_name_fit_into_the_message() -> None:
    assert len(message_of(report(16, "NVIDIA-A100-SXM4-80GB")).encode()) <= MESSAGE_LIMIT_BYTES


def test_a_report_that_would_be_cut_is_refused() -> None:
    with pytest.raises(ValueError, match=r"spec\.measure\.batches"):
        message_of(report(30, "NVIDIA-A100-SXM4-80GB"))
