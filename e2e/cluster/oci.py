"""Images as files: one folder of blobs for all images (OCI layout), written and streamed without a registry.

A stream holds only the blobs that a node lacks, so a change of code carries one small layer and not the whole image.
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import IO, Any

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
# An image that was replaced stays this long.
KEPT_S = 3600
LAYER = "application/vnd.oci.image.layer.v1.tar"


@dataclass(frozen=True)
class Image:
    """An image in the folder ``store``: its full name, and the descriptor of its manifest."""

    name: str
    store: Path
    manifest: dict[str, Any]

    @property
    def digest(self) -> str:
        return str(self.manifest["digest"])

    def blobs(self) -> dict[str, Path]:
        """Every blob of the image by digest: manifest, config and layers."""
        content = json.loads(blob_path(self.store, self.digest).read_text())
        digests = [self.digest, content["config"]["digest"], *(layer["digest"] for layer in content["layers"])]
        return {digest: blob_path(self.store, digest) for digest in digests}


def blob_path(store: Path, digest: str) -> Path:
    """Where a blob lies in an OCI layout."""
    return store / "blobs" / digest.replace(":", "/")


def tagged(store: Path, tag: str, name: str) -> Image:
    """The image that was pushed to ``oci:store:tag``.

    Raises KeyError when there is none of that tag.
    """
    for manifest in json.loads((store / "index.json").read_text())["manifests"]:
        if manifest.get("annotations", {}).get("org.opencontainers.image.ref.name") == tag:
            return Image(name, store, {key: manifest[key] for key in ("mediaType", "digest", "size")})
    raise KeyError(f"{store}: no image tagged {tag}")


def drop_unused(store: Path) -> None:
    """Delete blobs that no tagged image needs; young ones stay, somebody may be reading them."""
    needed: set[Path] = set()
    for manifest in json.loads((store / "index.json").read_text())["manifests"]:
        needed.update(Image("", store, manifest).blobs().values())
    for path in (store / "blobs/sha256").iterdir():
        if path not in needed and path.stat().st_mtime < time() - KEPT_S:
            path.unlink()


def write_image(store: Path, name: str, files: Mapping[str, Path], entrypoint: list[str]) -> Image:
    """Make an image of one layer that holds nothing but these files (path in the image: file here), all executable."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for target, source in sorted(files.items()):
            entry = tarfile.TarInfo(target.lstrip("/"))
            entry.size, entry.mode = source.stat().st_size, 0o755
            with source.open("rb") as content:
                tar.addfile(entry, content)
    layer_blob = _write_blob(store, LAYER, layer.getvalue())
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": entrypoint, "User": "65532:65532"},
        "rootfs": {"type": "layers", "diff_ids": [layer_blob["digest"]]},
    }
    config_blob = _write_blob(store, CONFIG, json.dumps(config, sort_keys=True).encode())
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": config_blob, "layers": [layer_blob]}
    return Image(name, store, _write_blob(store, MANIFEST, json.dumps(manifest, sort_keys=True).encode()))


def stream(image: Image, absent: set[str], target: IO[bytes]) -> None:
    """Write an archive for `ctr images import` that holds the image's blobs of these digests alone."""
    annotations = {"io.containerd.image.name": image.name, "org.opencontainers.image.ref.name": image.name}
    index = {"schemaVersion": 2, "manifests": [{**image.manifest, "annotations": annotations}]}
    with tarfile.open(fileobj=target, mode="w|") as tar:
        _add(tar, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
        _add(tar, "index.json", json.dumps(index).encode())
        for digest, path in image.blobs().items():
            if digest in absent:
                tar.add(path, "blobs/" + digest.replace(":", "/"))


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))


def _write_blob(store: Path, media_type: str, content: bytes) -> dict[str, Any]:
    digest = "sha256:" + hashlib.sha256(content).hexdigest()
    path = blob_path(store, digest)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(path.name + ".new")
        fresh.write_bytes(content)
        fresh.replace(path)
    return {"mediaType": media_type, "digest": digest, "size": len(content)}
