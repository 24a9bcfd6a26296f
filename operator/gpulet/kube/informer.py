"""A cache of one kind: list, then watch, for ever. About a tenth of kopf's cost per event."""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable
from typing import Any

from gpulet.kube.client import Client
from gpulet.kube.errors import GoneError, KubeError
from gpulet.kube.kinds import Kind

log = logging.getLogger("gpulet.informer")

Raw = dict[str, Any]
Key = tuple[str, str]
_LONGEST_BACKOFF_S = 30.0
_FAILURES_BEFORE_RELIST = 3
# Deletions whose objects a late answer could bring back; answers are late by seconds at most.
_REMEMBERED_DELETIONS = 256


class Informer:
    """Objects of one kind by (namespace, name), without managedFields. Never changes what it handed out."""

    def __init__(
        self,
        client: Client,
        kind: Kind,
        *,
        changed: Callable[[], None],
        namespace: str | None = None,
        labels: str | None = None,
        fields: str | None = None,
        silence_s: float = 70.0,
        matters: Callable[[Raw | None, Raw], bool] = lambda _, __: True,
    ) -> None:
        """``changed`` is called after each change of the cache that ``matters``: asked of an object as it was (None:
        it is new) and as it is. ``silence_s``: bookmarks come about every minute, so a stream that is silent for
        longer is dead and is opened anew."""
        self.kind = kind
        self.objects: dict[Key, Raw] = {}
        self.synced = asyncio.Event()
        self.relists = 0
        self._client, self._changed = client, changed
        self._namespace, self._labels, self._fields = namespace, labels, fields
        self._silence_s, self._matters = silence_s, matters
        self._gone: deque[str] = deque(maxlen=_REMEMBERED_DELETIONS)

    async def run(self) -> None:
        """Never returns; errors are waited out, for the cache holds the last known state meanwhile."""
        version, backoff_s, failures = "", 0.2, 0
        while True:
            try:
                if not version:
                    version = await self._list()
                async for event in self._client.watch(
                    self.kind,
                    self._namespace,
                    version=version,
                    labels=self._labels,
                    fields=self._fields,
                    silence_s=self._silence_s,
                ):
                    version = event["object"]["metadata"]["resourceVersion"]
                    self._take(event)
                    backoff_s, failures = 0.2, 0
            except GoneError:
                version = ""
            except KubeError as error:
                log.warning("%s: %s; again in %.1f s", self.kind.plural, error, backoff_s)
                failures += 1
                if failures >= _FAILURES_BEFORE_RELIST:
                    # A version that this API server has not reached (a restored etcd) is refused for ever.
                    version, failures = "", 0
            await asyncio.sleep(backoff_s * random.uniform(0.8, 1.2))
            backoff_s = min(backoff_s * 2, _LONGEST_BACKOFF_S)

    def learn(self, raw: Raw) -> bool:
        """Take in an object that a write just answered, if it is newer than the cache: the next pass then sees it.

        Answers whether there was something new that matters.
        """
        key = _key(raw)
        known = self.objects.get(key)
        if raw["metadata"]["uid"] in self._gone:
            return False  # the answer to a write arrived after the news of the deletion
        if known is None or int(known["metadata"]["resourceVersion"]) < int(raw["metadata"]["resourceVersion"]):
            self.objects[key] = _stripped(raw)
            return self._matters(known, raw)
        return False

    async def _list(self) -> str:
        items, version = await self._client.list(self.kind, self._namespace, labels=self._labels, fields=self._fields)
        self.relists += 1
        self.objects = {_key(item): _stripped(item) for item in items}
        self.synced.set()
        self._changed()
        return version

    def _take(self, event: Raw) -> None:
        if event["type"] == "BOOKMARK":
            return
        raw = event["object"]
        key = _key(raw)
        if event["type"] == "DELETED":
            self._gone.append(raw["metadata"]["uid"])
            known = self.objects.get(key)
            if known is not None and known["metadata"]["uid"] == raw["metadata"]["uid"]:
                del self.objects[key]
                self._changed()
        elif self.learn(raw):
            self._changed()


def _key(raw: Raw) -> Key:
    return raw["metadata"].get("namespace", ""), raw["metadata"]["name"]


def _stripped(raw: Raw) -> Raw:
    metadata = {k: v for k, v in raw["metadata"].items() if k != "managedFields"}
    return raw | {"metadata": metadata}
