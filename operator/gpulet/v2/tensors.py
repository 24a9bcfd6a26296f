"""A request of the v2 inference protocol with binary tensors, made from a model's metadata."""

import json
import math
import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# Bytes of one element, by v2 datatype; BYTES has no fixed size and is not made here.
_BYTES = {
    "BOOL": 1,
    "UINT8": 1,
    "INT8": 1,
    "UINT16": 2,
    "INT16": 2,
    "FP16": 2,
    "BF16": 2,
    "UINT32": 4,
    "INT32": 4,
    "FP32": 4,
    "UINT64": 8,
    "INT64": 8,
    "FP64": 8,
}
# Noise repeats after so many elements: made one by one, a large batch would cost seconds in a small share.
_NOISE = 65_536
# A larger request would be a test of the network.
MAX_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Payload:
    body: bytes
    headers: dict[str, str]


def payload(metadata: dict[str, Any], shape: tuple[int, ...] | None, seed: int) -> Payload:
    """The body of one request: FP32 inputs hold seeded noise in [-1, 1), all others zeros.

    ``shape`` replaces the shape of every input; without it free dimensions (-1) are 1. Raises ValueError for a model
    whose inputs cannot be made up.
    """
    inputs, blobs = [], []
    for tensor in metadata.get("inputs") or ():
        wanted = _shape(tensor["name"], [int(d) for d in tensor["shape"]], shape)
        blob = _blob(tensor, math.prod(wanted), seed)
        blobs.append(blob)
        inputs.append(
            {
                "name": tensor["name"],
                "shape": list(wanted),
                "datatype": tensor["datatype"],
                "parameters": {"binary_data_size": len(blob)},
            }
        )
    if not inputs:
        raise ValueError("the model's metadata names no inputs")
    if sum(map(len, blobs)) > MAX_BYTES:
        raise ValueError(f"a request would have {sum(map(len, blobs))} bytes; give a smaller --shape")
    header = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    return Payload(
        header + b"".join(blobs),
        {"Inference-Header-Content-Length": str(len(header)), "Content-Type": "application/octet-stream"},
    )


def _shape(name: str, own: list[int], given: tuple[int, ...] | None) -> Sequence[int]:
    if given is None:
        return [1 if dimension < 0 else dimension for dimension in own]
    if len(given) != len(own) or any(o not in (-1, g) for o, g in zip(own, given, strict=True)):
        raise ValueError(f"--shape {','.join(map(str, given))} does not fit input {name} of shape {own}")
    return given


def _blob(tensor: dict[str, Any], elements: int, seed: int) -> bytes:
    datatype = str(tensor["datatype"])
    if datatype not in _BYTES:
        raise ValueError(f"input {tensor['name']}: datatype {datatype} cannot be made up")
    if datatype == "FP32":
        chance = random.Random(seed)
        noise = array("f", (chance.uniform(-1, 1) for _ in range(min(elements, _NOISE))))
        return (noise * -(-elements // _NOISE))[:elements].tobytes()
    return bytes(elements * _BYTES[datatype])
