"""What a command line sees of a cluster: one reading of every kind that a controller's pass reads."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpulet.api import names
from gpulet.api.policy import Policy, PolicyError, read_policy
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
    policy_fault: str | None = None
    """Why the policy cannot be read: it is the default one then, for only the controller knows its last good one."""


async def look(client: Client, *, whole: bool = False) -> World:
    """Reads our kinds and the slices, or, with ``whole``, all that a plan depends on. Raises KubeError."""
    kinds = _KINDS if whole else _SEEN
    lists = await asyncio.gather(*(client.list(kind) for kind in kinds))
    objects: dict[str, Mapping[Key, dict[str, Any]]] = {kind.kind: {} for kind in _KINDS}
    for kind, (items, _) in zip(kinds, lists, strict=True):
        objects[kind.kind] = {key_of(item): item for item in items}
    return read_world(objects)


async def view(kubeconfig: Path | None) -> View:
    """One whole look. Raises KubeError."""
    async with Client(await load_configuration(kubeconfig)) as client:
        world = await look(client, whole=True)
        policy, fault = await _policy(client)
        return View(world, policy, fault)


async def policy_fault(kubeconfig: Path | None) -> str | None:
    """What is wrong with the cluster's policy; None: nothing. Raises KubeError."""
    async with Client(await load_configuration(kubeconfig)) as client:
        return (await _policy(client))[1]


async def _policy(client: Client) -> tuple[Policy, str | None]:
    """What the operator's ConfigMap says, else the default, and why it could not be read."""
    try:
        stored = await client.get(CONFIG_MAP, names.POLICY_CONFIG_MAP, names.SYSTEM_NAMESPACE)
    except NotFoundError:
        return Policy(), None
    text = (stored.get("data") or {}).get("policy.yaml")
    try:
        source = f"ConfigMap {names.SYSTEM_NAMESPACE}/{names.POLICY_CONFIG_MAP}"
        return Policy() if text is None else read_policy(text, source=source), None
    except PolicyError as error:
        return Policy(), str(error)
