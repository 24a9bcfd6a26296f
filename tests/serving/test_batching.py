"""Joining, cutting and filling up, with a function in the model's place."""

from typing import Any

import numpy as np
import pytest

from gpulet.serving.backends.batching import fixed, run_joined


def numbers(start: int, count: int) -> "np.ndarray[Any, Any]":
    return np.arange(start, start + count, dtype="float32").reshape(count, 1)


@pytest.mark.parametrize("sizes", [(1,), (2, 1), (3, 4, 2), (1, 1, 1, 1, 1)])
@pytest.mark.parametrize("batch", [1, 2, 4])
def test_each_request_gets_its_own_samples_back(sizes: tuple[int, ...], batch: int) -> None:
    seen = []

    def model(arrays: list[Any]) -> list[Any]:
        seen.append(arrays[0].shape[0])
        return [arrays[0] * 2, arrays[0] + arrays[1]]

    starts = np.cumsum([0, *sizes[:-1]])
    feeds = [[numbers(10 * int(at), n), numbers(7, n)] for at, n in zip(starts, sizes, strict=True)]
    for feed, (doubled, added) in zip(feeds, run_joined(feeds, fixed(model, batch)), strict=True):
        np.testing.assert_array_equal(doubled, feed[0] * 2)
        np.testing.assert_array_equal(added, feed[0] + feed[1])
    assert set(seen) == {batch}, "a fixed library takes its batch and nothing else"
    assert len(seen) == -(-sum(sizes) // batch), "no run is wasted"


def test_a_batch_of_requests_is_one_run() -> None:
    seen = []

    def model(arrays: list[Any]) -> list[Any]:
        seen.append(arrays[0].shape[0])
        return arrays

    run_joined([[numbers(0, 1)], [numbers(5, 3)]], model)
    assert seen == [4]
