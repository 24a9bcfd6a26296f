"""Kubernetes Events about our objects. Best effort: an Event that cannot be written is a log line."""

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from gpulet.kube.client import Client
from gpulet.kube.errors import KubeError

log = logging.getLogger("gpulet.events")

_CONTROLLER = "gpulet.dev/controller"
_NOTE_LENGTH = 1024
_REMEMBERED = 4096


class Events:
    """Writes each event once: the same reason and message about the same object are said again only if they change."""

    def __init__(self, client: Client, instance: str, *, controller: str = _CONTROLLER) -> None:
        self._client, self._instance, self._controller = client, instance, controller
        self._said: OrderedDict[tuple[str, str], str] = OrderedDict()

    async def tell(self, regarding: Mapping[str, Any], *, reason: str, message: str, warning: bool) -> None:
        """``regarding``: apiVersion, kind and metadata of the object."""
        metadata = regarding["metadata"]
        place = (metadata.get("uid", ""), reason)
        if self._said.get(place) == message:
            return
        self._said[place] = message
        self._said.move_to_end(place)
        if len(self._said) > _REMEMBERED:
            self._said.popitem(last=False)
        digest = hashlib.sha256(f"{place}{message}".encode()).hexdigest()[:16]
        manifest = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": f"{metadata['name']}.{digest}", "namespace": metadata.get("namespace") or "default"},
            "regarding": {
                "apiVersion": regarding["apiVersion"],
                "kind": regarding["kind"],
                "name": metadata["name"],
                "namespace": metadata.get("namespace", ""),
                "uid": metadata.get("uid", ""),
            },
            "reason": reason,
            "note": message[:_NOTE_LENGTH],
            "type": "Warning" if warning else "Normal",
            "action": reason,
            "reportingController": self._controller,
            "reportingInstance": self._instance,
            "eventTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        }
        try:
            await self._client.create(manifest)
        except KubeError as error:
            log.debug("event %s about %s: %s", reason, metadata["name"], error)
