"""Side by side in one share: each candidate runs in turns, so that what changes meanwhile changes for all."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpulet.api.workload import TuneSpec
from gpulet.tuning.environment import model_path
from gpulet.tuning.model import Loaded
from gpulet.tuning.verdict import Timing

ROUNDS = 7
SECONDS_PER_TURN = 0.6
"""Many periods of a 10 ms quota: throttling then shows in the mean as it does in serving."""

Runner = Callable[[], list[Any]]


def runners_of(spec: TuneSpec, loaded: Loaded, target: Any, library: Path) -> dict[str, Runner]:
    """tuned, untuned, onnx and, if an artifact is served now, before; each runs one batch of the same random input."""
    import numpy as np
    import tvm

    random = np.random.default_rng(spec.seed)
    feed = {t.name: random.random(t.shape, dtype="float32").astype(t.dtype) for t in loaded.inputs}
    inputs = [feed[t.name] for t in loaded.inputs]
    runners = {
        "tuned": _tvm_runner(tvm.runtime.load_module(str(library)), inputs),
        "untuned": _tvm_runner(tvm.compile(loaded.module, target), inputs),
        "onnx": _onnx_runner(loaded.fixed, feed),
    }
    if spec.before is not None:
        runners["before"] = _tvm_runner(tvm.runtime.load_module(str(model_path(spec.before))), inputs)
    return runners


def timings(runners: dict[str, Runner]) -> dict[str, Timing]:
    """Mean milliseconds of each runner in each round."""
    rounds: dict[str, list[float]] = {name: [] for name in runners}
    for runner in runners.values():
        runner()
    for _ in range(ROUNDS):
        for name, runner in runners.items():
            rounds[name].append(_turn(runner))
    return {name: Timing(tuple(values)) for name, values in rounds.items()}


def _turn(runner: Runner) -> float:
    started, runs = time.perf_counter(), 0
    while runs < 2 or time.perf_counter() - started < SECONDS_PER_TURN:
        runner()
        runs += 1
    return (time.perf_counter() - started) / runs * 1000


def _tvm_runner(executable: Any, inputs: list[Any]) -> Runner:
    import tvm
    from tvm import relax

    machine = relax.VirtualMachine(executable, tvm.cpu())
    tensors = [tvm.runtime.tensor(i) for i in inputs]
    function = machine["main"]

    def run() -> list[Any]:
        output = function(*tensors)
        return [o.numpy() for o in ([output] if hasattr(output, "numpy") else output)]

    return run


def _onnx_runner(model: bytes, feed: dict[str, Any]) -> Runner:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    def run() -> list[Any]:
        return list(session.run(None, feed))

    return run
