"""Volumes that pods on both nodes can share: folders of the machine, as static local PersistentVolumes."""

import json
from collections.abc import Sequence
from pathlib import Path
from string import Template

from e2e.cluster.commands import run
from e2e.cluster.controlplane import apply, kubectl
from e2e.cluster.layout import Layout
from e2e.cluster.paths import HERE

COUNT = 10


def ensure_volumes(cluster: Layout, binaries: Path) -> None:
    """Make the StorageClass gpulet-shared and its volumes; those that a deleted claim left behind are made fresh."""
    _drop_released(cluster, binaries)
    apply(cluster, binaries, manifests(cluster.shared, [of.name for of in cluster.nodes]))


def manifests(folder: Path, nodes: Sequence[str]) -> str:
    """The StorageClass and its volumes for these nodes, which all see ``folder``; makes a folder for each volume."""
    template = Template((HERE / "templates/shared-volume.yaml").read_text())
    texts = [(HERE / "templates/shared-storage.yaml").read_text()]
    for number in range(COUNT):
        volume = f"shared-{number}"
        (folder / volume).mkdir(parents=True, exist_ok=True)
        # Pods run as any user.
        (folder / volume).chmod(0o777)
        texts.append(template.substitute(volume=volume, path=folder / volume, nodes=json.dumps(list(nodes))))
    return "".join(texts)


def _drop_released(cluster: Layout, binaries: Path) -> None:
    existing = run(kubectl(cluster, binaries, "get", "persistentvolumes", "-o", "json"))
    for volume in json.loads(existing)["items"]:
        spec, phase = volume["spec"], volume.get("status", {}).get("phase")
        if spec.get("storageClassName") == "gpulet-shared" and phase in ("Released", "Failed"):
            run(kubectl(cluster, binaries, "delete", "persistentvolume", volume["metadata"]["name"]))
            run(["rm", "-rf", "--one-file-system", spec["local"]["path"]])
