"""ONNX on onnxruntime behind Triton's Python backend: one run for each dynamic batch. Copied into the repository."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import triton_python_backend_utils as pb


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        self.inputs = [i["name"] for i in config["input"]]
        self.outputs = [o["name"] for o in config["output"]]
        options = ort.SessionOptions()
        options.intra_op_num_threads = int(config["parameters"]["threads"]["string_value"])
        options.inter_op_num_threads = 1
        # A spinning thread would burn the share's quota while there is nothing to do.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        path = Path(__file__).parent / config["parameters"]["file"]["string_value"]
        self.session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def execute(self, requests: list[Any]) -> list[Any]:
        arrays = [[pb.get_input_tensor_by_name(r, name).as_numpy() for r in requests] for name in self.inputs]
        sizes = [a.shape[0] for a in arrays[0]]
        feed = {n: (a[0] if len(a) == 1 else np.concatenate(a)) for n, a in zip(self.inputs, arrays, strict=True)}
        results = self.session.run(self.outputs, feed)
        responses, start = [], 0
        for size in sizes:
            part = [pb.Tensor(n, r[start : start + size]) for n, r in zip(self.outputs, results, strict=True)]
            responses.append(pb.InferenceResponse(part))
            start += size
        return responses
