"""What Gpulet asked of the API server, from its audit log."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from e2e.kubectl import Kubectl

CONTROLLER = "system:serviceaccount:gpulet-system:gpulet-controller"
AGENT = "system:serviceaccount:gpulet-node:gpulet-agent"
_WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})
# Permissions that admission or the API server itself asks about while it handles another request: no request of
# their own shows in the log. Finalizers: may the child block its owner's deletion; use: our ValidatingAdmissionPolicy;
# associated-node: the API server's check of ResourceClaim.status.devices.
_ASKED_BY_THE_SERVER = frozenset({"use", "associated-node:update", "associated-node:patch"})


@dataclass(frozen=True, order=True)
class Request:
    """One kind of request: group, resource with subresource, verb."""

    group: str
    resource: str
    verb: str


# Slices are deleted when a GPU is gone or is cut into fewer devices: none is in a demo. Nor does a model of the demo
# get another file, for which the profiles of earlier ones are deleted (tests/controller/test_profiles.py), or
# have spec.tuning, whose TuningJobs the controller makes (test_controller.py sees these verbs used).
AUTOTUNED = frozenset(Request("gpulet.dev", "tuningjobs", verb) for verb in ("create", "patch", "delete"))
REPLACED = frozenset({Request("gpulet.dev", "modelprofiles", "delete")})
# The agent's Events are about GPUs that fail or that somebody else holds (test_node.py): a demo may see none.
EVENTS = frozenset({Request("events.k8s.io", "events", "create")})
RARE = frozenset({Request("resource.k8s.io", "resourceslices", "delete")}) | AUTOTUNED | REPLACED | EVENTS


def events(log: Path, user: str, *, since: datetime | None = None) -> Iterator[dict[str, Any]]:
    """Completed requests of one user, oldest first."""
    with log.open() as lines:
        for line in lines:
            if user not in line:
                continue
            event = json.loads(line)
            if event["user"]["username"] != user or "objectRef" not in event:
                continue
            if since is None or datetime.fromisoformat(event["requestReceivedTimestamp"]) >= since:
                yield event


def writes(log: Path, user: str, *, since: datetime) -> list[str]:
    """Everything a user wrote but its Leases, as `verb resource/namespace/name`."""
    return [
        f"{event['verb']} {_resource(event)}/{_name(event)}"
        for event in events(log, user, since=since)
        if event["verb"] in _WRITES and event["objectRef"]["resource"] != "leases"
    ]


def denied(log: Path, user: str) -> list[str]:
    """Requests that RBAC refused."""
    return sorted(
        {
            f"{event['verb']} {_resource(event)}"
            for event in events(log, user)
            if (event.get("responseStatus") or {}).get("code") == 403
            and event.get("annotations", {}).get("authorization.k8s.io/decision") == "forbid"
        }
    )


def used(log: Path, user: str) -> set[Request]:
    """Kinds of requests that were made. A server-side apply that made an object needed `create` as well."""
    found = set()
    for event in events(log, user):
        reference = event["objectRef"]
        request = Request(reference.get("apiGroup", ""), _resource(event), event["verb"])
        found.add(request)
        if request.verb == "patch" and (event.get("responseStatus") or {}).get("code") == 201:
            found.add(Request(request.group, request.resource, "create"))
    return found


def granted(kubectl: Kubectl, user: str) -> set[Request]:
    """What the roles bound to a service account allow, less what no request of its own asks for."""
    _, _, namespace, name = user.split(":")
    found: set[Request] = set()
    for rule in _rules(kubectl, namespace, name):
        found |= {
            Request(group, resource, verb)
            for group in rule.get("apiGroups") or ()
            for resource in rule.get("resources") or ()
            for verb in rule["verbs"]
            if verb not in _ASKED_BY_THE_SERVER and not resource.endswith("/finalizers")
        }
    return found


def _rules(kubectl: Kubectl, namespace: str, name: str) -> Iterator[dict[str, Any]]:
    for kind in ("clusterrolebindings", "rolebindings"):
        for binding in kubectl.list(kind, "-A"):
            subjects = binding.get("subjects") or ()
            if not any(
                s["kind"] == "ServiceAccount" and (s["namespace"], s["name"]) == (namespace, name) for s in subjects
            ):
                continue
            reference = binding["roleRef"]
            scope = binding["metadata"].get("namespace") if reference["kind"] == "Role" else None
            role = kubectl.get(reference["kind"].lower(), reference["name"], scope)
            yield from (role or {}).get("rules") or ()


def _resource(event: dict[str, Any]) -> str:
    reference = event["objectRef"]
    return "/".join(filter(None, (reference["resource"], reference.get("subresource"))))


def _name(event: dict[str, Any]) -> str:
    return f"{event['objectRef'].get('namespace', '')}/{event['objectRef'].get('name', '')}"
