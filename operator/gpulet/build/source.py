"""Where a model's file comes from, as a volume of a pod."""

from dataclasses import dataclass
from typing import Any

from gpulet.api.inferencemodel import ModelFormat, ModelSource

# The name a model file has inside an OCI image, by format.
_FILE_IN_IMAGE: dict[ModelFormat, str] = {
    "onnx": "model.onnx",
    "tensorrt": "model.plan",
    "torchscript": "model.pt",
    "tvm": "tuned.so",
    "python": "model.py",
}


class UnsupportedSourceError(ValueError):
    """The URI is well formed but this version cannot bring it; the message names the remedy."""


@dataclass(frozen=True)
class ModelFile:
    """A volume and the file in it."""

    volume: dict[str, Any]
    """Without its name."""
    path: str
    """Relative to the volume's root."""
    claim: str | None = None
    """The PersistentVolumeClaim it lies on: its topology binds the pod."""
    pull_secret: str | None = None
    """The Secret with which the node's runtime pulls the image it lies in."""
    replaceable: bool = True
    """Whether another file can come to lie there while a pod has it mounted."""


def model_file(source: ModelSource) -> ModelFile:
    """How to mount a model's file; raises UnsupportedSourceError."""
    scheme, rest = source.uri.split("://", 1)
    if scheme == "configmap":
        name, key = rest.split("/", 1)
        # Optional: a pod that starts can say what is missing; one that waits for its volume says nothing.
        volume = {"configMap": {"name": name, "items": [{"key": key, "path": key}], "optional": True}}
        return ModelFile(volume, key)
    if scheme == "pvc":
        claim, path = rest.split("/", 1)
        return ModelFile({"persistentVolumeClaim": {"claimName": claim, "readOnly": True}}, path, claim)
    if scheme == "oci":
        volume = {"image": {"reference": rest, "pullPolicy": "IfNotPresent"}}
        secret = source.credentials_ref.name if source.credentials_ref is not None else None
        return ModelFile(volume, _FILE_IN_IMAGE[source.format], pull_secret=secret, replaceable=False)
    raise UnsupportedSourceError(
        f"spec.model.uri: {scheme}:// cannot be mounted yet; put the file on a volume (pvc://claim/path), "
        "in a ConfigMap (configmap://name/key) or in an image (oci://...)"
    )
