"""The plan in Triton's words."""

from pathlib import Path

import pytest

from gpulet.api.workload import ServedModel, ServeSpec
from gpulet.serving.configuration import config_pbtxt, file_name
from gpulet.serving.inspection import Signature, TensorShape
from gpulet.serving.triton import Ports, Traffic, flags, read_traffic


def signature(*first: int) -> Signature:
    """An input and an output that begin with these dimensions."""
    inputs = (TensorShape("x", (*first, 3, 28, 28), "TYPE_FP32"),)
    return Signature(inputs, (TensorShape("y", (*first, 10), "TYPE_FP32"),))


def model(**changes: object) -> ServedModel:
    values = {"name": "m", "format": "onnx", "path": "dir/m.onnx", "batch": 8, "queue_delay_microseconds": 500}
    return ServedModel.model_validate(values | changes)


def options(*, on_gpu: bool = False, **changes: object) -> list[str]:
    spec = ServeSpec(models=[model(**changes)], percentiles=[99.9, 50.0])
    return flags(spec, repository=Path("repository"), ports=Ports(), key="k", on_gpu=on_gpu)


def test_batch_delay_instances_and_threads_are_as_planned() -> None:
    text = config_pbtxt(model(instances=2, threads=3), signature(-1), on_gpu=False)
    assert "max_batch_size: 8" in text
    assert "dynamic_batching { max_queue_delay_microseconds: 500 }" in text
    assert "instance_group [ { kind: KIND_CPU count: 2 } ]" in text
    assert 'input [ { name: "x" data_type: TYPE_FP32 dims: [ 3, 28, 28 ] } ]' in text
    assert 'backend: "python"' in text and 'string_value: "m.onnx"' in text
    assert 'key: "threads" value: { string_value: "3" }' in text
    assert '"rows"' not in text


def test_a_batch_of_one_waits_for_nobody() -> None:
    assert "dynamic_batching" not in config_pbtxt(model(batch=1), signature(-1), on_gpu=False)


@pytest.mark.parametrize("format_", ["onnx", "tvm"])
def test_a_fixed_batch_is_hidden_from_callers(format_: str) -> None:
    text = config_pbtxt(model(format=format_), signature(4), on_gpu=False)
    assert "max_batch_size: 8" in text and "dynamic_batching" in text
    assert "dims: [ 3, 28, 28 ]" in text
    assert 'key: "rows" value: { string_value: "4" }' in text


def test_a_model_without_a_batch_dimension_is_served_as_it_is() -> None:
    unlike = Signature(signature(1).inputs, (TensorShape("y", (10,), "TYPE_FP32"),))
    text = config_pbtxt(model(), unlike, on_gpu=False)
    assert "max_batch_size: 0" in text and "dynamic_batching" not in text
    assert "dims: [ 1, 3, 28, 28 ]" in text and "dims: [ 10 ]" in text


def test_one_number_a_sample_has_no_dimensions_of_its_own() -> None:
    scalar = Signature(signature(-1).inputs, (TensorShape("y", (-1,), "TYPE_FP32"),))
    assert "dims: [ 1 ] reshape { shape: [ ] }" in config_pbtxt(model(), scalar, on_gpu=False)


@pytest.mark.parametrize(
    ("format_", "backend", "file"),
    [
        ("onnx", "onnxruntime", "model.onnx"),
        ("tensorrt", "tensorrt", "model.plan"),
        ("torchscript", "pytorch", "model.pt"),
    ],
)
def test_on_a_gpu_the_backend_is_triton_s_own(format_: str, backend: str, file: str) -> None:
    chosen = model(format=format_, path="anything")
    text = config_pbtxt(chosen, None, on_gpu=True)
    assert f'backend: "{backend}"' in text and "KIND_GPU" in text
    assert "max_batch_size: 8" in text and "input" not in text
    assert file_name(chosen, on_gpu=True) == file


def test_the_metrics_carry_the_objective_s_percentile() -> None:
    assert "--metrics-config=summary_latencies=true" in options()
    assert "--metrics-config=summary_quantiles=0.5:0.02,0.999:0.001" in options()


def test_only_a_complete_configuration_is_taken_as_it_is() -> None:
    assert "--disable-auto-complete-config" in options()
    assert "--disable-auto-complete-config" not in options(on_gpu=True)
    assert "--disable-auto-complete-config" not in options(format="python")


def test_traffic_is_that_of_all_models() -> None:
    metrics = """# HELP nv_inference_request_success Number of successful inference requests
nv_inference_request_success{model="a",version="1"} 3
nv_inference_request_success{model="b",version="1"} 4
nv_inference_request_failure{model="b",reason="BACKEND",version="1"} 2
nv_inference_count{model="a",version="1"} 300
nv_inference_pending_request_count{model="a",version="1"} 1
"""
    assert read_traffic(metrics) == Traffic(finished=9, pending=1)
