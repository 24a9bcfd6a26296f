"""A tuned TVM library behind Triton's Python backend. Its batch is fixed: requests are joined, cut and filled up.

Copied into the repository.
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb

from gpulet.serving.backends.batching import execute, fixed


class TritonPythonModel:
    """Parameters: ``file``, ``threads``, ``rows`` (the library's batch)."""

    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        self.inputs = [i["name"] for i in config["input"]]
        self.outputs = [o["name"] for o in config["output"]]
        parameters = {name: p["string_value"] for name, p in config["parameters"].items()}
        # Both are read when TVM is imported. The runtime alone takes half the CPU and memory of the compiler.
        os.environ["TVM_NUM_THREADS"] = parameters["threads"]
        os.environ["TVM_USE_RUNTIME_LIB"] = "1"
        import tvm
        from tvm.runtime.vm import VirtualMachine

        device = tvm.cuda(int(args["model_instance_device_id"])) if args["model_instance_kind"] == "GPU" else tvm.cpu()
        library = tvm.runtime.load_module(str(Path(__file__).parent / parameters["file"]))
        function = VirtualMachine(library, device)["main"]

        def run_library(arrays: list[Any]) -> list[Any]:
            output = function(*[tvm.runtime.tensor(np.ascontiguousarray(a), device) for a in arrays])
            tensors = [output] if hasattr(output, "numpy") else output
            return [tensor.numpy() for tensor in tensors]

        self.run = fixed(run_library, int(parameters["rows"]))

    def execute(self, requests: list[Any]) -> list[Any]:
        return execute(pb, requests, self.inputs, self.outputs, self.run)
