"""A model that ONNX Runtime's CPU kernels serve badly and TVM can serve well: grouped 5x5 convolutions.

ONNX Runtime 1.32 runs grouped convolutions as many small matrix products; TVM 0.27 fuses and vectorises over the group.
One thread of a Zen 4 core, batch 1, measured by `gpulet tune-merge` inside the quota, beside other load:

| trials | search | quota of merge | ONNX Runtime | untuned TVM | tuned TVM |
|---|---|---|---|---|---|
| 32 | replay-trace | 0.25 core | 34.6 ms | 148 ms | 11.1 ms |
| 64 | evolutionary | 0.5 core | 16.9 ms | 101 ms | 3.6 ms |

Without a quota ONNX Runtime needs 5.8 ms, the second result 1.2 ms (the best of 150 runs each, in turns).
"""

import argparse
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SIDE = 28
INPUT_SHAPE = (3, SIDE, SIDE)


def write_grouped_net(path: Path, *, width: int = 128, groups: int = 32, blocks: int = 4, kernel: int = 5) -> None:
    """A stem, ``blocks`` equal grouped convolutions (one operator to tune, four times), pooling, a classifier."""
    random = np.random.default_rng(0)
    weights, nodes = [], []

    def weight(name: str, *shape: int, scale: float) -> str:
        weights.append(numpy_helper.from_array((random.standard_normal(shape) * scale).astype("float32"), name))
        return name

    def convolution(source: str, name: str, *, channels: int, size: int, group: int) -> str:
        fan = channels // group * size * size
        kernel_name = weight(f"{name}_w", width, channels // group, size, size, scale=(2 / fan) ** 0.5)
        bias = weight(f"{name}_b", width, scale=0.01)
        attributes = {"kernel_shape": [size, size], "pads": [size // 2] * 4, "group": group}
        nodes.append(helper.make_node("Conv", [source, kernel_name, bias], [f"{name}_c"], **attributes))
        nodes.append(helper.make_node("Relu", [f"{name}_c"], [name]))
        return name

    last = convolution("input", "stem", channels=3, size=3, group=1)
    for block in range(blocks):
        last = convolution(last, f"block{block}", channels=width, size=kernel, group=groups)
    nodes.append(helper.make_node("GlobalAveragePool", [last], ["pooled"]))
    nodes.append(helper.make_node("Flatten", ["pooled"], ["flat"]))
    classifier = [weight("fc_w", width, 10, scale=0.1), weight("fc_b", 10, scale=0.01)]
    nodes.append(helper.make_node("Gemm", ["flat", *classifier], ["output"]))
    graph = helper.make_graph(
        nodes,
        "grouped_net",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["N", *INPUT_SHAPE])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["N", 10])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    onnx.save(model, str(path))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    write_grouped_net(parser.parse_args().path)
