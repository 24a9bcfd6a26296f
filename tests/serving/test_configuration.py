"""The plan in Triton's words."""

from gpulet.api.workload import ServedModel, ServeSpec
from gpulet.serving.configuration import config_pbtxt
from gpulet.serving.inspection import Signature, TensorShape
from gpulet.serving.triton import Ports, flags

BATCHED = Signature((TensorShape("x", (-1, 3, 28, 28), "TYPE_FP32"),), (TensorShape("y", (-1, 10), "TYPE_FP32"),))
FIXED = Signature((TensorShape("x", (4, 3), "TYPE_FP32"),), (TensorShape("y", (4, 2), "TYPE_FP32"),))


def model(**changes: object) -> ServedModel:
    values = {"name": "m", "format": "onnx", "path": "dir/m.onnx", "batch": 8, "queue_delay_microseconds": 500}
    return ServedModel.model_validate(values | changes)


def test_batch_delay_and_instances_are_as_planned() -> None:
    text = config_pbtxt(model(instances=2), BATCHED, on_gpu=False)
    assert "max_batch_size: 8" in text
    assert "dynamic_batching { max_queue_delay_microseconds: 500 }" in text
    assert "instance_group [ { kind: KIND_CPU count: 2 } ]" in text
    assert 'input [ { name: "x" data_type: TYPE_FP32 dims: [ 3, 28, 28 ] } ]' in text
    assert 'backend: "python"' in text and 'string_value: "m.onnx"' in text


def test_a_batch_of_one_waits_for_nobody() -> None:
    assert "dynamic_batching" not in config_pbtxt(model(batch=1), BATCHED, on_gpu=False)


def test_a_tuned_library_takes_any_number_of_samples_but_is_not_batched_by_triton() -> None:
    text = config_pbtxt(model(format="tvm", path="tuned.so"), FIXED, on_gpu=False)
    assert "max_batch_size: 0" in text and "dynamic_batching" not in text
    assert "dims: [ -1, 3 ]" in text


def test_on_a_gpu_the_backend_is_triton_s_own() -> None:
    text = config_pbtxt(model(), BATCHED, on_gpu=True)
    assert 'backend: "onnxruntime"' in text and "KIND_GPU" in text and "parameters" not in text
    assert 'backend: "tensorrt"' in config_pbtxt(model(format="tensorrt"), BATCHED, on_gpu=True)


def test_the_metrics_carry_the_objective_s_percentile(tmp_path: object) -> None:
    spec = ServeSpec(models=[model()], percentiles=[50.0, 99.9])
    wanted = flags(spec, repository=tmp_path, ports=Ports())  # type: ignore[arg-type]
    assert "--metrics-config=summary_latencies=true" in wanted
    assert any(f.startswith("--metrics-config=summary_quantiles=0.5:") and "0.999:" in f for f in wanted)
