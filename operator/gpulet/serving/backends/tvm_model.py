"""A tuned TVM library behind Triton's Python backend. Its batch is fixed: requests are put together, cut and padded."""

import json
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("TVM_NUM_THREADS", "1")

import numpy as np
import triton_python_backend_utils as pb
import tvm
from tvm import relax


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        self.inputs = [i["name"] for i in config["input"]]
        self.outputs = [o["name"] for o in config["output"]]
        path = Path(__file__).parent / config["parameters"]["file"]["string_value"]
        self.batch = json.loads(path.with_suffix(".json").read_text())["batch"]
        self.machine = relax.VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cpu())
        self.run = self.machine["main"]

    def execute(self, requests: list[Any]) -> list[Any]:
        arrays = [[pb.get_input_tensor_by_name(r, name).as_numpy() for r in requests] for name in self.inputs]
        sizes = [a.shape[0] for a in arrays[0]]
        joined = [a[0] if len(a) == 1 else np.concatenate(a) for a in arrays]
        parts = [self.run_batch(joined, start) for start in range(0, sum(sizes), self.batch)]
        results = [np.concatenate(column) for column in zip(*parts, strict=True)]
        responses, start = [], 0
        for size in sizes:
            part = [pb.Tensor(n, r[start : start + size]) for n, r in zip(self.outputs, results, strict=True)]
            responses.append(pb.InferenceResponse(part))
            start += size
        return responses

    def run_batch(self, joined: list[Any], start: int) -> list[Any]:
        """One run of the library over at most ``batch`` samples from ``start`` on."""
        parts = [a[start : start + self.batch] for a in joined]
        size = parts[0].shape[0]
        if size < self.batch:
            missing = self.batch - size
            parts = [np.concatenate([p, np.zeros((missing, *p.shape[1:]), p.dtype)]) for p in parts]
        output = self.run(*[tvm.runtime.tensor(np.ascontiguousarray(p)) for p in parts])
        tensors = [output] if hasattr(output, "numpy") else list(output)
        return [t.numpy()[:size] for t in tensors]
