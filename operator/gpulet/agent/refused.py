"""A prepare that is refused, told in the claim itself: its pod's event is seen by few, and by no controller."""

import asyncio
import logging
from datetime import UTC, datetime
from typing import Any

from gpulet.agent.conditions import device_key, status_manifest
from gpulet.agent.verify import READY
from gpulet.api import names
from gpulet.kube.client import Client
from gpulet.kube.errors import KubeError
from gpulet.status.conditions import no

log = logging.getLogger("gpulet.refused")

REASON = "PrepareRefused"
_PATIENCE_S = 3.0
"""The kubelet waits for the answer meanwhile."""


async def tell_refused(client: Client, claim: dict[str, Any], message: str) -> None:
    """Condition Ready False of each of our devices in ``claim``, as the API server has it; best effort.

    A claim that says so already is not written again. When a later prepare succeeds, the watcher's look says Ready.
    """
    try:
        manifests = _manifests(claim, message)
    except (AttributeError, KeyError, TypeError, ValueError):
        return  # it was refused because it is malformed: the kubelet's event has to do
    try:
        async with asyncio.timeout(_PATIENCE_S):
            for manifest in manifests:
                await client.apply_status(manifest)
    except (KubeError, TimeoutError) as error:
        log.warning("claim %s: the refusal cannot be told: %s", claim["metadata"]["name"], error)


def _manifests(claim: dict[str, Any], message: str) -> list[dict[str, Any]]:
    results = [r for r in claim["status"]["allocation"]["devices"]["results"] if r["driver"] == names.DRIVER]
    keys = [device_key(pool=r["pool"], device=r["device"], share_id=r.get("shareID")) for r in results]
    found = [no(READY, REASON, message)]
    manifests = [status_manifest(claim, key, found, now=datetime.now(UTC)) for key in keys]
    return [m for m in manifests if m is not None]
