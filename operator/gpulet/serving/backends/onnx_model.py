"""ONNX on onnxruntime behind Triton's Python backend: one run for each dynamic batch. Copied into the repository."""

import json
from pathlib import Path
from typing import Any

import onnxruntime as ort
import triton_python_backend_utils as pb

from gpulet.serving.backends.batching import execute, fixed


class TritonPythonModel:
    """Parameters: ``file``, ``threads``, ``rows`` (the file's fixed batch; absent where it takes any)."""

    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        self.inputs = [i["name"] for i in config["input"]]
        self.outputs = [o["name"] for o in config["output"]]
        parameters = {name: p["string_value"] for name, p in config["parameters"].items()}
        options = ort.SessionOptions()
        options.intra_op_num_threads = int(parameters["threads"])
        options.inter_op_num_threads = 1
        # A spinning thread would burn the share's quota while there is nothing to do.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        path = Path(__file__).parent / parameters["file"]
        self.session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.run = fixed(self.run_session, int(parameters["rows"])) if "rows" in parameters else self.run_session
        self.batched = config["max_batch_size"] > 0

    def run_session(self, arrays: list[Any]) -> list[Any]:
        return list(self.session.run(self.outputs, dict(zip(self.inputs, arrays, strict=True))))

    def execute(self, requests: list[Any]) -> list[Any]:
        groups = [requests] if self.batched else [[r] for r in requests]
        return [answer for g in groups for answer in execute(pb, g, self.inputs, self.outputs, self.run)]
