"""From an ONNX file to what MetaSchedule tunes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpulet.tuning.sharding import Work


class ModelError(ValueError):
    """The model cannot be tuned. ``reason``: NotTunable, ModelMissing, ModelBroken."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class Tensor:
    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Loaded:
    """A model at one batch size."""

    module: Any
    """The relax module, weights as constants."""
    inputs: tuple[Tensor, ...]
    outputs: tuple[str, ...]
    fixed: bytes
    """The ONNX file with its batch dimension fixed."""


def load(path: Path, *, format_: str, batch: int) -> Loaded:
    """Reads the file and fixes its batch dimension; raises ModelError."""
    if format_ != "onnx":
        raise ModelError("NotTunable", f"format {format_} cannot be tuned: give the model as ONNX")
    if not path.is_file():
        raise ModelError("ModelMissing", f"{path.name} is missing on the model's volume: check spec.model.uri")
    import onnx
    from tvm.relax.frontend.onnx import from_onnx

    try:
        proto = onnx.load(str(path))
        onnx.checker.check_model(proto)
    except Exception as error:  # onnx and protobuf raise errors of many kinds; their words go to the user
        raise ModelError("ModelBroken", f"{path.name} cannot be read as ONNX: {str(error)[:300]}") from error
    weights = {i.name for i in proto.graph.initializer}
    values = [v for v in proto.graph.input if v.name not in weights]
    for value in (*values, *proto.graph.output):
        _fix_batch(value, batch)
    del proto.graph.value_info[:]
    inputs = tuple(_tensor(v) for v in values)
    _check_static(path, inputs, batch)
    try:
        module = from_onnx(proto, keep_params_in_input=False)
    except Exception as error:  # an operator or attribute that TVM does not know; its words go to the user
        raise ModelError("NotTunable", f"TVM cannot import {path.name}: {str(error)[-300:]}") from error
    return Loaded(module, inputs, tuple(v.name for v in proto.graph.output), proto.SerializeToString())


def _check_static(path: Path, inputs: tuple[Tensor, ...], batch: int) -> None:
    """A tuned library has one shape: that of the planned batch."""
    for tensor in inputs:
        if 0 in tensor.shape:
            remedy = "export the model with only its batch dimension dynamic"
            raise ModelError("NotTunable", f"{path.name}: input {tensor.name} has dynamic dimensions: {remedy}")
    if inputs and inputs[0].shape and inputs[0].shape[0] != batch:
        raise ModelError(
            "NotTunable",
            f"{path.name}: input {inputs[0].name} has batch {inputs[0].shape[0]} written into the file, wanted is "
            f"{batch}: set spec.batch to {inputs[0].shape[0]}, or export the model with a dynamic batch dimension",
        )


def _fix_batch(value: Any, batch: int) -> None:
    dims = value.type.tensor_type.shape.dim
    if len(dims) and (dims[0].dim_param or dims[0].dim_value in (0, -1)):
        dims[0].dim_value = batch


def _tensor(value: Any) -> Tensor:
    from onnx import helper

    kind = value.type.tensor_type
    dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type).name
    return Tensor(value.name, tuple(d.dim_value for d in kind.shape.dim), dtype)


def target() -> Any:
    """The CPU of this container, one core: a share is less than a core."""
    import tvm

    cpu = tvm.get_global_func("target.llvm_get_system_cpu")()
    return tvm.target.Target({"kind": "llvm", "mcpu": str(cpu), "num-cores": 1})


def tasks(module: Any, target_: Any) -> tuple[list[Any], list[Work]]:
    """MetaSchedule's tasks and their work; ``Work.index`` points into the tasks."""
    from tvm import relax
    from tvm.s_tir import meta_schedule as ms

    with target_:
        legal = relax.get_pipeline("zero")(module)
    found = ms.relax_integration.extract_tasks(legal, target_)
    return found, [Work(t.task_name, _flops(t), i) for i, t in enumerate(found)]


def _flops(task: Any) -> float:
    from tvm.s_tir.analysis import estimate_tir_flops

    try:
        return float(estimate_tir_flops(task.dispatched[0])) * float(task.weight)
    except Exception:  # an operator whose work cannot be estimated is kept, at the end
        return 1001.0
