"""Carries out a pass's actions. What already holds costs no request; what fails stops nobody else."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from itertools import groupby
from typing import Any, Protocol

from gpulet.api import names
from gpulet.controller.actions import Action, Apply, Delete, Keep, Leave, Tell, Unroute, WriteStatus
from gpulet.controller.refused import Object, RefusedChildren, child_of, gpulet_key, owner_of
from gpulet.controller.world import Key, Raw, owned_by
from gpulet.kube.client import Client
from gpulet.kube.difference import holds
from gpulet.kube.errors import ForbiddenError, InvalidError, KubeError, NotFoundError, UnavailableError
from gpulet.kube.events import Events
from gpulet.kube.kinds import GPULET, POD, Kind, kind_named, kind_of
from gpulet.model.demand import ModelId
from gpulet.status.figures import compact, settle

log = logging.getLogger("gpulet.execute")

_NAMED_AFTER_OTHERS = ("Service", "NetworkPolicy", "TuningJob")
# Of these the caches hold our own alone, so that somebody else's is seen only by asking.
_CACHED_IF_OURS = ("Service", "NetworkPolicy")


_SIDE_BY_SIDE = 8
"""Requests at a time: a thousand models take a second and not a minute, and the API server has others to serve."""


class Seen(Protocol):
    """What the executor needs of the cache."""

    def get(self, kind: str, key: Key) -> dict[str, Any] | None: ...

    def learn(self, raw: dict[str, Any]) -> None: ...


class NameTakenError(Exception):
    """Somebody's own object bears the name that one of ours needs."""


class Executor:
    """The only writer of the controller."""

    def __init__(self, client: Client, events: Events) -> None:
        self._client, self._events = client, events
        self._status_written_s: dict[tuple[str, Key], float] = {}
        self._refusals: list[tuple[ModelId, str]] = []
        self._names_taken: dict[Key, str] = {}
        self._refused_children = RefusedChildren()

    async def carry_out(
        self, actions: list[Action], seen: Seen, *, progress: Callable[[], None] = lambda: None
    ) -> bool:
        """In order, where order matters: a run of actions of one kind goes side by side. What fails is logged and met
        again by the next pass, which decides anew. ``progress`` is called after each action.

        Answers whether something failed for a passing reason (a conflict, a busy API server), so that the next pass
        should not wait for an event. An API server that cannot serve is not asked for the rest.
        """
        again, unavailable = False, 0
        for _, run in groupby(actions, key=type):
            batch = list(run)
            for start in range(0, len(batch), _SIDE_BY_SIDE):
                results = await asyncio.gather(*(self._try(a, seen) for a in batch[start : start + _SIDE_BY_SIDE]))
                progress()
                again |= any(r is not None and r.retryable for r in results)
                unavailable += sum(isinstance(r, UnavailableError) for r in results)
                if unavailable > _SIDE_BY_SIDE:
                    log.warning("the API server does not serve: the rest is left to the next pass")
                    return True
        self._refused_children.keep({child_of(a.manifest) for a in actions if isinstance(a, Apply)})
        self._forget(seen)
        return again

    async def _try(self, action: Action, seen: Seen) -> KubeError | None:
        """What it failed of, if it was not a refusal that is remembered."""
        try:
            await self._one(action, seen)
        except (ForbiddenError, InvalidError) as error:
            self._note_refusal(action, error, seen)
        except NameTakenError as error:
            await self._tell_of_taken_name(action, error)
        except KubeError as error:
            log.warning("%s: %s", type(action).__name__, error)
            return error
        return None

    def take_refusals(self) -> list[tuple[ModelId, str]]:
        """Models whose children a quota or an admission policy has refused since the last call, and its words."""
        taken, self._refusals = self._refusals, []
        return taken

    @property
    def names_taken(self) -> Mapping[Key, str]:
        """Services that could not be made because somebody else's bears the name, with words for the owner."""
        return dict(self._names_taken)

    @property
    def refused_children(self) -> Mapping[Object, str]:
        """The API server's words for owners of children (of tuning, of profiling) that it does not accept."""
        return self._refused_children.by_owner

    async def _one(self, action: Action, seen: Seen) -> None:
        match action:
            case Apply(manifest):
                await self._apply(manifest, seen)
            case Delete(kind, key, uid, reason):
                log.info("delete %s %s/%s: %s", kind, *key, reason)
                await self._client.delete(kind_named(kind), key[1], key[0], uid=uid)
            case Unroute(key):
                await self._label(POD, key, names.LABEL_ROUTED, "false", seen)
            case Leave(key):
                await self._label(GPULET, key, names.LABEL_LEAVING, "true", seen)
            case Keep(key, stays):
                await self._label(POD, key, names.LABEL_ROUTED, "true", seen)
                if stays:
                    await self._label(GPULET, key, names.LABEL_LEAVING, None, seen)
            case WriteStatus(kind, key, status):
                await self._write_status(kind, key, status, seen)
            case Tell(regarding, reason, message, warning):
                await self._events.tell(regarding, reason=reason, message=message, warning=warning)

    async def _apply(self, manifest: dict[str, Any], seen: Seen) -> None:
        metadata = manifest["metadata"]
        current = seen.get(manifest["kind"], (metadata["namespace"], metadata["name"]))
        child = child_of(manifest)
        if current is not None and holds(current, manifest):
            self._refused_children.accept(child)
            return
        if not self._refused_children.may_ask(child, now_s=time.monotonic()):
            return
        if manifest["kind"] in _NAMED_AFTER_OTHERS:
            await self._refuse_to_take_over(manifest, current)
        log.info("apply %s %s/%s", manifest["kind"], metadata["namespace"], metadata["name"])
        seen.learn(await self._client.apply(manifest))
        self._refused_children.accept(child)
        if manifest["kind"] == "Service":
            self._names_taken.pop((metadata["namespace"], metadata["name"]), None)

    async def _refuse_to_take_over(self, manifest: dict[str, Any], current: Raw | None) -> None:
        """A name made from a user's may be that of somebody's own object: raises NameTakenError.

        An apply without force would not do: it merges with whatever names none of our fields.
        """
        metadata = manifest["metadata"]
        if current is None and manifest["kind"] in _CACHED_IF_OURS:
            try:
                current = await self._client.get(kind_of(manifest), metadata["name"], metadata["namespace"])
            except NotFoundError:
                return
        if current is not None and not owned_by(current, metadata["ownerReferences"][0]["uid"]):
            raise NameTakenError(f"{manifest['kind']} {metadata['namespace']}/{metadata['name']} is somebody else's")

    async def _label(self, kind: Kind, key: Key, label: str, value: str | None, seen: Seen) -> None:
        raw = seen.get(kind.kind, key)
        if raw is None or (raw["metadata"].get("labels") or {}).get(label) == value:
            return
        log.info("label %s %s/%s: %s=%s", kind.kind, *key, label, value)
        seen.learn(await self._client.merge(kind, key[1], key[0], {"metadata": {"labels": {label: value}}}))

    async def _write_status(self, kind: str, key: Key, status: dict[str, Any], seen: Seen) -> None:
        current = seen.get(kind, key)
        if current is None:
            return
        previous = current.get("status") or {}
        age_s = time.monotonic() - self._status_written_s.get((kind, key), float("-inf"))
        wanted = settle(previous, compact(status), seconds_since_write=age_s)
        if wanted == previous:
            return
        target = kind_named(kind)
        manifest = {
            "apiVersion": target.api_version,
            "kind": kind,
            "metadata": {"name": key[1], "namespace": key[0]},
            "status": wanted,
        }
        seen.learn(await self._client.apply_status(manifest))
        self._status_written_s[kind, key] = time.monotonic()

    def _forget(self, seen: Seen) -> None:
        """What is deleted needs no memory."""
        self._status_written_s = {at: s for at, s in self._status_written_s.items() if seen.get(*at) is not None}

    async def _tell_of_taken_name(self, action: Action, error: NameTakenError) -> None:
        log.warning("%s", error)
        assert isinstance(action, Apply)
        metadata = action.manifest["metadata"]
        owner = metadata["ownerReferences"][0]
        regarding = {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "metadata": {"name": owner["name"], "uid": owner["uid"], "namespace": metadata["namespace"]},
        }
        message = (
            f"{action.manifest['kind']} {metadata['name']} is somebody else's: rename it, or the {owner['kind']} that "
            "needs its name"
        )
        await self._events.tell(regarding, reason="NameTaken", message=message, warning=True)
        if action.manifest["kind"] == "Service":
            self._names_taken[metadata["namespace"], metadata["name"]] = message

    def _note_refusal(self, action: Action, error: ForbiddenError | InvalidError, seen: Seen) -> None:
        log.warning("%s: %s", type(action).__name__, error)
        if not isinstance(action, Apply):
            return
        gpulet = gpulet_key(action.manifest)
        owner = owner_of(action.manifest, seen.get("Gpulet", gpulet) if gpulet is not None else None)
        if owner is not None:
            child = child_of(action.manifest)
            self._refused_children.refuse(child, owner, str(error), now_s=time.monotonic())
            return
        # Only what a share consists of: a refused Service or profile says nothing of where the model may run.
        if action.manifest["kind"] not in ("Gpulet", "Pod", "ResourceClaim"):
            return
        owned = action.manifest if gpulet is None else seen.get("Gpulet", gpulet) or action.manifest
        model = (owned["metadata"].get("labels") or {}).get(names.LABEL_MODEL)
        if model is not None:
            self._refusals.append((ModelId(owned["metadata"]["namespace"], model), str(error)))
