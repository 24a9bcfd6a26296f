"""Claims that vanished without the kubelet's word: it lost its own state, or somebody removed a finalizer by hand."""

import asyncio
import logging
import time
from collections.abc import Iterable

from gpulet.agent.claims import ClaimRecord
from gpulet.agent.shares import Shares
from gpulet.agent.waiting import Deadline
from gpulet.kube.client import Client
from gpulet.kube.errors import NotFoundError
from gpulet.kube.kinds import RESOURCE_CLAIM

log = logging.getLogger("gpulet.vanished")

_ASK_S = 60.0
_PATIENCE_S = 120.0
"""The kubelet itself unprepares claims of vanished pods each minute."""
_CALL_S = 20.0


class Vanished:
    """Undoes shares whose claim no longer exists and that no pod of the node uses."""

    def __init__(self, client: Client, shares: Shares) -> None:
        self._client = client
        self._shares = shares
        self._asked_s: dict[str, float] = {}
        self._missing_s: dict[str, float] = {}

    async def look(self, records: Iterable[ClaimRecord], used: Iterable[tuple[str, str]]) -> None:
        """``used``: (namespace, name) of claims that pods here name. Raises KubeError and what unprepare raises."""
        in_use, now_s = set(used), time.monotonic()
        suspects = {r.uid: r for r in records if (r.namespace, r.name) not in in_use}
        for known in (self._asked_s, self._missing_s):
            for uid in known.keys() - suspects.keys():
                del known[uid]
        for record in suspects.values():
            if now_s - self._asked_s.get(record.uid, -_ASK_S) >= _ASK_S:
                self._asked_s[record.uid] = now_s
                await self._ask(record, now_s)

    async def _ask(self, record: ClaimRecord, now_s: float) -> None:
        try:
            claim = await self._client.get(RESOURCE_CLAIM, record.name, record.namespace)
            gone = claim["metadata"]["uid"] != record.uid
        except NotFoundError:
            gone = True
        if not gone:
            self._missing_s.pop(record.uid, None)
        elif now_s - self._missing_s.setdefault(record.uid, now_s) >= _PATIENCE_S:
            await asyncio.to_thread(self._shares.unprepare, record.uid, Deadline(_CALL_S))
            log.warning("claim %s/%s vanished and the kubelet never said so: undone", record.namespace, record.name)
