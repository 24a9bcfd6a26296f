"""A result is adopted only if it wins by more than the measurements scatter."""

import math

import numpy as np

from gpulet.api.workload import TuneReport
from gpulet.tuning.verdict import Timing, absolute_difference, adopted, relative_difference


def test_a_clear_win_is_adopted() -> None:
    assert adopted(Timing((10.0, 10.1, 9.9, 10.0)), Timing((4.0, 4.1, 3.9, 4.0)))


def test_a_loss_and_a_draw_are_not() -> None:
    assert not adopted(Timing((4.0, 4.1, 3.9)), Timing((10.0, 10.1, 9.9)))
    assert not adopted(Timing((10.0, 10.0, 10.0)), Timing((9.9, 9.9, 9.9)))


def test_a_win_within_the_scatter_is_not() -> None:
    assert not adopted(Timing((8.0, 10.0, 12.0, 14.0)), Timing((7.0, 9.0, 11.0, 13.0)))


def test_the_report_fits_a_termination_message() -> None:
    longest = TuneReport(
        digest="sha256:" + "f" * 64, path="p" * 200, tvm_version="v" * 20, error="e" * 1000, reason="ModelBroken",
        records=10**6, max_difference=1e-300, before_milliseconds=1 / 3, untuned_milliseconds=1 / 3,
        after_milliseconds=1 / 3, onnx_runtime_milliseconds=1 / 3,
    )  # fmt: skip
    assert len(longest.model_dump_json(by_alias=True, exclude_none=True).encode()) <= 4096


def test_a_difference_is_measured_against_the_outputs_own_scale() -> None:
    tuned, untuned = [np.array([1000.5, 0.0])], [np.array([1000.0, 0.0])]
    assert absolute_difference(tuned, untuned) == 0.5
    assert math.isclose(relative_difference(tuned, untuned), 0.0005)


def test_what_is_no_number_or_has_another_shape_never_passes_for_equal() -> None:
    right = [np.array([1.0, 2.0])]
    for wrong in (np.array([math.nan, 2.0]), np.array([math.inf, 2.0]), np.array([1.0, 2.0, 3.0])):
        assert relative_difference([wrong], right) == math.inf
        assert absolute_difference([wrong], right) == math.inf
