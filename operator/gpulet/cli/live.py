"""What a command line sees of a cluster: one reading of every kind that a controller's pass reads."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpulet.api import names
from gpulet.api.policy import Policy, read_policy
from gpulet.controller.read import read_world
from gpulet.controller.world import Key, World, key_of
from gpulet.kube.client import Client, load_configuration
from gpulet.kube.errors import NotFoundError
from gpulet.kube.kinds import (
    CONFIG_MAP,
    GPULET,
    INFERENCE_MODEL,
    JOB,
    MODEL_PROFILE,
    NODE,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    RESOURCE_CLAIM,
    RESOURCE_SLICE,
    SERVICE,
    TUNING_JOB,
)

_KINDS = (
    INFERENCE_MODEL,
    TUNING_JOB,
    MODEL_PROFILE,
    GPULET,
    POD,
    NODE,
    SERVICE,
    JOB,
    RESOURCE_CLAIM,
    RESOURCE_SLICE,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
)
# What a table needs: a look every second should not read volumes and nodes.
_SEEN = (INFERENCE_MODEL, TUNING_JOB, MODEL_PROFILE, GPULET, RESOURCE_SLICE)


@dataclass(frozen=True)
class View:
    """A cluster at one moment, and the policy that its operator follows."""

    world: World
    policy: Policy


async def look(client: Client, *, whole: bool = False) -> World:
    """Reads our kinds and the slices, or, with ``whole``, all that a plan depends on. Raises KubeError."""
    kinds = _KINDS if whole else _SEEN
    lists = await asyncio.gather(*(client.list(kind) for kind in kinds))
    objects: dict[str, Mapping[Key, dict[str, Any]]] = {kind.kind: {} for kind in _KINDS}
    for kind, (items, _) in zip(kinds, lists, strict=True):
        objects[kind.kind] = {key_of(item): item for item in items}
    return read_world(objects)


async def view(kubeconfig: Path | None) -> View:
    """One whole look. Raises KubeError; PolicyError if the operator's policy cannot be read."""
    async with Client(await load_configuration(kubeconfig)) as client:
        world = await look(client, whole=True)
        try:
            stored = await client.get(CONFIG_MAP, names.POLICY_CONFIG_MAP, names.SYSTEM_NAMESPACE)
        except NotFoundError:
            return View(world, Policy())
        text = (stored.get("data") or {}).get("policy.yaml")
        source = f"ConfigMap {names.POLICY_CONFIG_MAP}"
        return View(world, Policy() if text is None else read_policy(text, source=source))
