"""Reads a model file once, in a process of its own: its tensors, and whether the runtime accepts it.

The serving program stays small that way, and a file that crashes the reader does not take it along.
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TIMEOUT_S = 300
_ONNX = """
import json, sys, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
def tensors(values): return [[v.name, [d if isinstance(d, int) else -1 for d in v.shape], v.type] for v in values]
print(json.dumps({"inputs": tensors(session.get_inputs()), "outputs": tensors(session.get_outputs())}))
"""
_ONNX_TYPES = {
    "tensor(float)": "TYPE_FP32",
    "tensor(float16)": "TYPE_FP16",
    "tensor(double)": "TYPE_FP64",
    "tensor(int64)": "TYPE_INT64",
    "tensor(int32)": "TYPE_INT32",
    "tensor(int8)": "TYPE_INT8",
    "tensor(uint8)": "TYPE_UINT8",
    "tensor(bool)": "TYPE_BOOL",
    "tensor(string)": "TYPE_STRING",
}
_NUMPY_TYPES = {
    "float32": "TYPE_FP32",
    "float16": "TYPE_FP16",
    "float64": "TYPE_FP64",
    "int64": "TYPE_INT64",
    "int32": "TYPE_INT32",
    "int8": "TYPE_INT8",
    "uint8": "TYPE_UINT8",
    "bool": "TYPE_BOOL",
}


class ModelFileError(ValueError):
    """The file cannot be served; the message names file, model and remedy, ``reason`` is for the model's condition."""

    def __init__(self, message: str, *, reason: str = "ModelBroken") -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class TensorShape:
    name: str
    dims: tuple[int, ...]
    """With the batch dimension; -1 where free."""
    type: str
    """Triton's word, such as TYPE_FP32."""


@dataclass(frozen=True)
class Signature:
    inputs: tuple[TensorShape, ...]
    outputs: tuple[TensorShape, ...]

    @property
    def _first(self) -> set[int | None]:
        return {t.dims[0] if t.dims else None for t in (*self.inputs, *self.outputs)}

    @property
    def batched(self) -> bool:
        """Whether the first dimension of every tensor counts samples: free, or the same number everywhere."""
        return len(self._first) == 1 and None not in self._first

    @property
    def rows(self) -> int | None:
        """The batch that the file was exported with, where that is a fixed number."""
        (first,) = self._first if self.batched else (None,)
        return None if first == -1 else first


def inspect(path: Path, *, model: str, format_: str) -> Signature | None:
    """The model's tensors; None for a user's own Python program, which names them itself.

    Raises ModelFileError for a missing or broken file.
    """
    if format_ == "onnx":
        return _inspect_onnx(path, model)
    if format_ == "tvm":
        return _inspect_tvm(path, model)
    if format_ == "python":
        return None
    raise ModelFileError(
        f"model {model}: format {format_} needs a GPU and this device is simulated: give the model as onnx or tvm in "
        "spec.model",
        reason="UnsupportedFormat",
    )


def check_present(path: Path, model: str) -> None:
    """Raises ModelFileError where there is no file that can be read."""
    reason = "ModelBroken"
    try:
        with path.open("rb") as file:
            if file.read(1):
                return
        words = "is empty"
    except FileNotFoundError:
        reason, words = "ModelMissing", "is missing on its volume"
    except OSError as error:
        words = f"cannot be read ({error.strerror})"
    message = f"model {model}: file {path.name} {words}; check spec.model.uri and what it points to"
    raise ModelFileError(message, reason=reason)


def _inspect_onnx(path: Path, model: str) -> Signature:
    try:
        done = subprocess.run(
            [sys.executable, "-c", _ONNX, str(path)], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise ModelFileError(f"model {model}: file {path.name} was not read within {_TIMEOUT_S} s") from None
    if done.returncode != 0:
        words = (done.stderr.strip().splitlines() or [f"its reader ended with code {done.returncode}"])[-1][:300]
        raise ModelFileError(f"model {model}: file {path.name} is broken: {words}; replace the file at spec.model.uri")
    read = json.loads(done.stdout)
    return Signature(
        tuple(_tensor(model, *t, types=_ONNX_TYPES) for t in read["inputs"]),
        tuple(_tensor(model, *t, types=_ONNX_TYPES) for t in read["outputs"]),
    )


def _inspect_tvm(path: Path, model: str) -> Signature:
    """A tuned library brings its tensors in a file beside it."""
    sidecar = path.with_suffix(".json")
    try:
        read: dict[str, Any] = json.loads(sidecar.read_text())
        inputs, outputs = (
            tuple(_tensor(model, t["name"], t["shape"], t["dtype"], types=_NUMPY_TYPES) for t in read[side])
            for side in ("inputs", "outputs")
        )
    except OSError as error:
        raise ModelFileError(
            f"model {model}: file {sidecar.name} beside {path.name} cannot be read ({error.strerror}): it names the "
            "library's tensors; put both files at spec.model.uri, or tune again",
            reason="ModelMissing" if isinstance(error, FileNotFoundError) else "ModelBroken",
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise ModelFileError(f"model {model}: file {sidecar.name} is broken: {error}; tune again") from error
    signature = Signature(inputs, outputs)
    if signature.rows is None:
        raise ModelFileError(
            f"model {model}: file {sidecar.name} must name one batch, the first dimension of every tensor; tune again"
        )
    return signature


def _tensor(model: str, name: str, dims: list[int], type_: str, *, types: dict[str, str]) -> TensorShape:
    if type_ not in types:
        raise ModelFileError(f"model {model}: tensor {name} has type {type_}, which Triton cannot serve")
    return TensorShape(name, tuple(int(d) for d in dims), types[type_])
