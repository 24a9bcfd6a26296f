"""The demo's model files: small convolutional nets, made on the spot, carried by ConfigMaps.

`python -m e2e.demo.models | kubectl apply --server-side -f -` brings them to any cluster.
"""

import base64
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from e2e.tuning_model import write_grouped_net

# The API server takes objects of up to 1 MiB, and binary data travels as base64 within 1.5 MiB of JSON.
MAX_BYTES = 900_000
KEY = "model.onnx"

# 13 to 15 ms of one core each: long beside the quota's period of 10 ms, so that a share's latency is its share's.
NETS: dict[str, dict[str, int]] = {
    "doorbell": {"width": 128, "groups": 16, "blocks": 20, "kernel": 3},
    "shelf": {"width": 96, "groups": 24, "blocks": 12, "kernel": 5},
    # Few operators that ONNX Runtime serves badly: tuning makes it fastest.
    "gestures": {"width": 128, "groups": 32, "blocks": 10, "kernel": 5},
}


def config_map(namespace: str, name: str) -> dict[str, Any]:
    """The ConfigMap ``model-<name>`` with the net's ONNX file. Raises ValueError for a file that is too large."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / KEY
        write_grouped_net(path, **NETS[name])
        content = path.read_bytes()
    if len(content) > MAX_BYTES:
        raise ValueError(f"model {name}: {len(content)} bytes do not fit into a ConfigMap; make the net smaller")
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"model-{name}", "namespace": namespace},
        "binaryData": {KEY: base64.b64encode(content).decode()},
    }


if __name__ == "__main__":
    items = [config_map("demo", name) for name in sorted(NETS)]
    json.dump({"apiVersion": "v1", "kind": "List", "items": items}, sys.stdout)
