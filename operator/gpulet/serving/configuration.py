"""config.pbtxt of a model: the plan in Triton's words. Pure."""

import json

from gpulet.api.workload import ServedModel
from gpulet.serving.inspection import Signature, TensorShape

# Triton's own backends, in NVIDIA's image: they read tensors and types from the file themselves.
_GPU_BACKENDS = {"onnx": "onnxruntime", "tensorrt": "tensorrt", "torchscript": "pytorch"}
# The name under which a backend looks for its file, where the file may be called anything.
_FILE_NAMES = {"onnxruntime": "model.onnx", "tensorrt": "model.plan", "pytorch": "model.pt"}


def backend_of(model: ServedModel, *, on_gpu: bool) -> str:
    """Triton's backend for the model's format; on CPU everything runs behind the Python one."""
    return _GPU_BACKENDS.get(model.format, "python") if on_gpu else "python"


def file_name(model: ServedModel, *, on_gpu: bool) -> str:
    """Name of the model's file in its version folder."""
    if model.format == "python":
        return "model.py"
    return _FILE_NAMES.get(backend_of(model, on_gpu=on_gpu), model.path.rsplit("/", 1)[-1])


def config_pbtxt(model: ServedModel, signature: Signature | None, *, on_gpu: bool) -> str:
    """Batch, queue delay and instances as planned; without a signature Triton reads the tensors from the file."""
    backend = backend_of(model, on_gpu=on_gpu)
    batched = signature is None or signature.batched
    largest = model.batch if batched else 0
    lines = [
        f"name: {json.dumps(model.name)}",
        f"backend: {json.dumps(backend)}",
        f"max_batch_size: {largest}",
        f"instance_group [ {{ kind: {'KIND_GPU' if on_gpu else 'KIND_CPU'} count: {model.instances} }} ]",
    ]
    if largest > 1:
        lines.append(f"dynamic_batching {{ max_queue_delay_microseconds: {model.queue_delay_microseconds} }}")
    if signature is not None:
        lines += [f"input [ {_tensor(t, batched)} ]" for t in signature.inputs]
        lines += [f"output [ {_tensor(t, batched)} ]" for t in signature.outputs]
    parameters = _parameters(model, signature, backend, file_name(model, on_gpu=on_gpu))
    lines += [
        f"parameters {{ key: {json.dumps(k)} value: {{ string_value: {json.dumps(v)} }} }}" for k, v in parameters
    ]
    return "\n".join(lines) + "\n"


def _parameters(model: ServedModel, signature: Signature | None, backend: str, file: str) -> list[tuple[str, str]]:
    if backend == "onnxruntime":
        return [("intra_op_thread_count", str(model.threads))]
    if backend != "python":
        return []
    fixed = [("rows", str(signature.rows))] if signature is not None and signature.rows is not None else []
    return [("threads", str(model.threads)), ("file", file), *fixed]


def _tensor(tensor: TensorShape, batched: bool) -> str:
    dims = tensor.dims[1:] if batched else tensor.dims
    name = json.dumps(tensor.name)
    # Triton has no word for a tensor of no dimensions: one element, reshaped to nothing.
    shape = ", ".join(map(str, dims)) if dims else "1"
    reshape = "" if dims else " reshape { shape: [ ] }"
    return f"{{ name: {name} data_type: {tensor.type} dims: [ {shape} ]{reshape} }}"
