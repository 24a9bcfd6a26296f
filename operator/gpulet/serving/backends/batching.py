"""One run of the model for a whole dynamic batch: requests are joined, cut into what it takes, and split again."""

from collections.abc import Callable
from typing import Any

import numpy as np

Arrays = list[Any]
"""One numpy array a tensor; the first dimension counts samples."""
Run = Callable[[Arrays], Arrays]


def execute(backend: Any, requests: list[Any], inputs: list[str], outputs: list[str], run: Run) -> list[Any]:
    """Responses to ``requests``, in their order; ``backend`` is Triton's ``triton_python_backend_utils``."""
    feeds = [[backend.get_input_tensor_by_name(r, name).as_numpy() for name in inputs] for r in requests]
    try:
        results = run_joined(feeds, run)
    except Exception as error:
        if len(requests) == 1:
            return [backend.InferenceResponse([], backend.TritonError(str(error)))]
        # A request that the model refuses must not fail those it was batched with.
        return [response for r in requests for response in execute(backend, [r], inputs, outputs, run)]
    return [
        backend.InferenceResponse([backend.Tensor(n, a) for n, a in zip(outputs, arrays, strict=True)])
        for arrays in results
    ]


def run_joined(feeds: list[Arrays], run: Run) -> list[Arrays]:
    """The outputs of each feed, from one run over all of them."""
    if len(feeds) == 1:
        return [run(feeds[0])]
    results = run([np.concatenate(column) for column in zip(*feeds, strict=True)])
    ends = np.cumsum([feed[0].shape[0] for feed in feeds])
    starts = [0, *ends[:-1]]
    return [[r[start:end] for r in results] for start, end in zip(starts, ends, strict=True)]


def fixed(run: Run, batch: int) -> Run:
    """``run`` takes exactly ``batch`` samples; the result takes any number: cut, the last part filled up."""

    def run_parts(joined: Arrays) -> Arrays:
        samples = joined[0].shape[0]
        parts = [_run_part(run, [a[at : at + batch] for a in joined], batch) for at in range(0, samples, batch)]
        return parts[0] if len(parts) == 1 else [np.concatenate(column) for column in zip(*parts, strict=True)]

    return run_parts


def _run_part(run: Run, part: Arrays, batch: int) -> Arrays:
    samples = part[0].shape[0]
    if samples < batch:
        # Filled with a sample that is there anyway: made-up values could be outside of what the model takes.
        part = [np.concatenate([a, np.repeat(a[-1:], batch - samples, axis=0)]) for a in part]
    return [output[:samples] for output in run(part)]
