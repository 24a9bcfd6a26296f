"""config.pbtxt of a model: the plan in Triton's words. Pure."""

from gpulet.api.workload import ServedModel
from gpulet.serving.inspection import Signature, TensorShape

_GPU_BACKENDS = {"onnx": "onnxruntime", "tensorrt": "tensorrt", "torchscript": "pytorch", "python": "python"}


def config_pbtxt(model: ServedModel, signature: Signature, *, on_gpu: bool) -> str:
    """Batch, queue delay and instances as planned; on a GPU Triton's own backend, else our Python one."""
    batched = signature.batched and model.format != "tvm"
    largest = model.batch if batched else 0
    backend = _GPU_BACKENDS.get(model.format, "python") if on_gpu else "python"
    kind = "KIND_GPU" if on_gpu else "KIND_CPU"
    lines = [
        f'name: "{model.name}"',
        f'backend: "{backend}"',
        f"max_batch_size: {largest}",
        *(f"input [ {_tensor(t, batched)} ]" for t in signature.inputs),
        *(f"output [ {_tensor(t, batched)} ]" for t in signature.outputs),
        f"instance_group [ {{ kind: {kind} count: {model.instances} }} ]",
    ]
    if largest > 1:
        lines.append(f"dynamic_batching {{ max_queue_delay_microseconds: {model.queue_delay_microseconds} }}")
    if backend == "python":
        lines.append(_parameter("threads", str(model.threads)))
        lines.append(_parameter("file", model.path.rsplit("/", 1)[-1]))
    return "\n".join(lines) + "\n"


def _tensor(tensor: TensorShape, batched: bool) -> str:
    """A tuned library has a fixed batch but takes smaller requests (padded), so its first dimension is free too."""
    dims = tensor.dims[1:] if batched else (-1, *tensor.dims[1:])
    return f'{{ name: "{tensor.name}" data_type: {tensor.type} dims: [ {", ".join(map(str, dims))} ] }}'


def _parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}'
