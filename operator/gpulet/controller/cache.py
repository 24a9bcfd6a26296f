"""The controller's informers: what the loop sees, and what wakes it."""

import asyncio
from collections.abc import Mapping
from typing import Any

from gpulet.api import names
from gpulet.api.policy import Policy
from gpulet.controller.actions import Action
from gpulet.controller.policy_in_force import PolicyInForce
from gpulet.controller.world import Key
from gpulet.kube.client import Client
from gpulet.kube.informer import Informer
from gpulet.kube.kinds import (
    CONFIG_MAP,
    GPULET,
    INFERENCE_MODEL,
    JOB,
    MODEL_PROFILE,
    NETWORK_POLICY,
    NODE,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    RESOURCE_CLAIM,
    RESOURCE_SLICE,
    SERVICE,
    TUNING_JOB,
)

_OURS = f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY}"


def pod_matters(old: dict[str, Any] | None, new: dict[str, Any]) -> bool:
    """Ours always; of all others only what changes the room on a node: a busy cluster would be planned without end."""
    labels = new["metadata"].get("labels") or {}
    if labels.get(names.LABEL_MANAGED_BY) == names.MANAGED_BY or old is None:
        return True
    return _room_taken(old) != _room_taken(new)


def _room_taken(pod: dict[str, Any]) -> tuple[object, ...]:
    ended = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
    return pod["spec"].get("nodeName"), ended, "deletionTimestamp" in pod["metadata"]


class Cache:
    """One informer a kind. Pods of all owners are watched, for they take the nodes' CPU and memory too."""

    def __init__(self, client: Client, *, system_namespace: str = names.SYSTEM_NAMESPACE) -> None:
        self._event = asyncio.Event()
        self._policy = PolicyInForce()

        def informer(kind: Any, **selectors: Any) -> Informer:
            return Informer(client, kind, changed=self._event.set, **selectors)

        self._informers = {
            i.kind.kind: i
            for i in (
                informer(INFERENCE_MODEL),
                informer(TUNING_JOB),
                informer(MODEL_PROFILE),
                informer(GPULET),
                informer(POD, matters=pod_matters),
                informer(NODE),
                informer(SERVICE, labels=_OURS),
                informer(JOB, labels=_OURS),
                informer(NETWORK_POLICY, labels=_OURS),
                informer(RESOURCE_CLAIM),
                informer(RESOURCE_SLICE, fields=f"spec.driver={names.DRIVER}"),
                informer(PERSISTENT_VOLUME),
                informer(PERSISTENT_VOLUME_CLAIM),
            )
        }
        self._policy_informer = informer(
            CONFIG_MAP, namespace=system_namespace, fields=f"metadata.name={names.POLICY_CONFIG_MAP}"
        )

    async def run(self) -> None:
        """Never returns."""
        async with asyncio.TaskGroup() as group:
            for informer in (*self._informers.values(), self._policy_informer):
                group.create_task(informer.run(), name=f"informer {informer.kind.plural}")

    async def synced(self) -> None:
        """Returns when every informer has listed: nothing is planned on half a view."""
        for informer in (*self._informers.values(), self._policy_informer):
            await informer.synced.wait()

    @property
    def is_synced(self) -> bool:
        return all(i.synced.is_set() for i in (*self._informers.values(), self._policy_informer))

    def objects(self) -> Mapping[str, Mapping[Key, dict[str, Any]]]:
        """By kind, all objects by key."""
        return {kind: informer.objects for kind, informer in self._informers.items()}

    def get(self, kind: str, key: Key) -> dict[str, Any] | None:
        informer = self._informers.get(kind)
        return informer.objects.get(key) if informer is not None else None

    def learn(self, raw: dict[str, Any]) -> None:
        """What a write answered is seen by the next pass, watch or no watch."""
        informer = self._informers.get(raw["kind"])
        if informer is not None and informer.learn(raw):
            self._event.set()

    def touch(self) -> None:
        """Something outside the API server changed: look again."""
        self._event.set()

    def clear_changed(self) -> None:
        self._event.clear()

    async def changed(self, *, timeout_s: float) -> None:
        """Returns at the next change, at the latest after ``timeout_s``."""
        try:
            await asyncio.wait_for(self._event.wait(), timeout_s)
        except TimeoutError:
            return

    def policy(self) -> Policy | None:
        """The policy in force; None: none can be read, and nothing good was ever seen."""
        return self._policy.read(next(iter(self._policy_informer.objects.values()), None))

    def policy_faults(self) -> list[Action]:
        """What is wrong with the policy's ConfigMap, as an Event on it."""
        return [self._policy.fault] if self._policy.fault is not None else []
