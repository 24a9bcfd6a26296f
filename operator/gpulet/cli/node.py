"""`gpulet node`: what is on each node, what is enforced, what is wrong. Pure but for ``read``."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpulet.agent.verify import pod_uses
from gpulet.api import names
from gpulet.controller.inventory import current_pools, mebibytes
from gpulet.kube.client import Client, load_configuration
from gpulet.kube.errors import NotFoundError
from gpulet.kube.kinds import DAEMON_SET, DEVICE_CLASS, EVENT, NODE, POD, RESOURCE_CLAIM, RESOURCE_SLICE

Raw = dict[str, Any]

NODE_NAMESPACE = "gpulet-node"
_FAILED_PREPARE = "FailedPrepareDynamicResources"


class UnknownNodeError(ValueError):
    """There is no such node; the message names those that there are."""


@dataclass(frozen=True)
class NodePart:
    """What the API server says of nodes and of Gpulet's node part, at one moment."""

    nodes: list[Raw]
    slices: list[Raw]
    claims: list[Raw]
    pods: list[Raw]
    daemon_sets: list[Raw] = field(default_factory=list)
    device_classes: list[Raw] = field(default_factory=list)
    events: list[Raw] = field(default_factory=list)
    """Of failed prepares, and of withdrawn GPUs."""

    def named(self, name: str | None) -> list[Raw]:
        """That node, or all that have to do with GPUs of ours; raises UnknownNodeError."""
        if name is not None:
            found = [n for n in self.nodes if n["metadata"]["name"] == name]
            if not found:
                known = ", ".join(sorted(n["metadata"]["name"] for n in self.nodes))
                raise UnknownNodeError(f"there is no node {name}; there are: {known or 'none'}")
            return found
        ours = {s["spec"].get("nodeName") for s in self.slices} | {p["spec"].get("nodeName") for p in self.parts()}
        return [n for n in self.nodes if n["metadata"]["name"] in ours]

    def parts(self) -> list[Raw]:
        """Pods of the node part."""
        return [p for p in self.pods if p["metadata"]["namespace"] == NODE_NAMESPACE]


async def read(kubeconfig: Path | None) -> NodePart:
    """Raises KubeError."""
    async with Client(await load_configuration(kubeconfig)) as client:

        async def items(kind: Any, namespace: str | None = None, fields: str | None = None) -> list[Raw]:
            try:
                return (await client.list(kind, namespace, fields=fields))[0]
            except NotFoundError:
                # An API group that this cluster does not serve: the doctor says so.
                return []

        nodes, slices, claims, pods, sets, classes, failed, told = await asyncio.gather(
            items(NODE),
            items(RESOURCE_SLICE, fields=f"spec.driver={names.DRIVER}"),
            items(RESOURCE_CLAIM),
            items(POD),
            items(DAEMON_SET, NODE_NAMESPACE),
            items(DEVICE_CLASS),
            items(EVENT, fields=f"reason={_FAILED_PREPARE}"),
            items(EVENT, fields="regarding.kind=Node"),
        )
    ours = [e for e in told if e.get("reportingController") == f"{names.GROUP}/agent"]
    return NodePart(nodes, slices, claims, pods, sets, classes, failed + ours)


def facts(part: NodePart, node: Raw) -> dict[str, Any]:
    """One node as JSON has it."""
    name = node["metadata"]["name"]
    shares = _shares(part, name)
    gpus = _gpus(part.slices, name)
    return {
        "node": name,
        "gpus": gpus,
        "shares": shares,
        "wrong": [*_wrong_gpus(gpus), *_wrong_shares(shares)],
    }


def _gpus(slices: Iterable[Raw], node: str) -> list[dict[str, Any]]:
    """One entry a GPU: all its devices tell the same of it."""
    found: dict[str, dict[str, Any]] = {}
    for pool in current_pools(s for s in slices if s["spec"].get("nodeName") == node).values():
        for device in (d for s in pool for d in s["spec"].get("devices") or ()):
            of = {key: next(iter(value.values())) for key, value in device["attributes"].items()}
            gpu = found.setdefault(
                of["uuid"],
                {
                    "uuid": of["uuid"],
                    "index": of["index"],
                    "product": of["product"],
                    "source": of["source"],
                    "driver": of.get("driverVersion", ""),
                    "migMode": of.get("migMode", ""),
                    "health": of.get("health", "healthy"),
                    "withdrawn": of.get("withdrawn", ""),
                    "taints": sorted(t["effect"] for t in device.get("taints") or ()),
                    "devices": 0,
                },
            )
            gpu["devices"] += 1
    return sorted(found.values(), key=lambda gpu: int(gpu["index"]))


def _shares(part: NodePart, node: str) -> list[dict[str, Any]]:
    pods = {p["metadata"]["uid"]: p for p in part.pods}
    uses = pod_uses(part.pods)
    found = []
    for claim in part.claims:
        status = claim.get("status") or {}
        results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()
        for result in (r for r in results if r["driver"] == names.DRIVER and r["pool"].startswith(f"{node}/")):
            metadata, capacity = claim["metadata"], result.get("consumedCapacity") or {}
            using = [pods[use.uid] for use in uses.get((metadata["namespace"], metadata["name"]), [])]
            told = _conditions(status, result)
            found.append(
                {
                    "claim": f"{metadata['namespace']}/{metadata['name']}",
                    "gpu": result["pool"].partition("/")[2],
                    "device": result["device"],
                    "computePercent": int(capacity.get("computePercent", 0)),
                    "memoryMebibytes": mebibytes(capacity.get("memory", "0")),
                    "clients": int(capacity.get("clients", 0)),
                    "pods": {p["metadata"]["name"]: (p.get("status") or {}).get("phase", "Unknown") for p in using},
                    "ready": told.get("Ready", {"status": "Unknown", "reason": "NotPrepared", "message": ""}),
                    "enforced": told.get("Enforced", {"status": "Unknown", "reason": "NotPrepared", "message": ""}),
                }
            )
    return sorted(found, key=lambda share: (share["gpu"], share["device"], share["claim"]))


def _conditions(status: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    place = (result["pool"], result["device"], result.get("shareID"))
    return {
        c["type"]: {key: c.get(key, "") for key in ("status", "reason", "message")}
        for d in status.get("devices") or ()
        if (d["pool"], d["device"], d.get("shareID")) == place
        for c in d.get("conditions") or ()
    }


def _wrong_gpus(gpus: Iterable[Mapping[str, Any]]) -> list[str]:
    said = []
    for gpu in gpus:
        if gpu["health"] != "healthy":
            said.append(f"GPU {gpu['uuid']} is {gpu['health']}")
        if gpu["withdrawn"]:
            said.append(f"GPU {gpu['uuid']} is withdrawn ({gpu['withdrawn']}): ask gpulet doctor")
        if "after a reset" in gpu["migMode"]:
            said.append(f"GPU {gpu['uuid']}: MIG mode {gpu['migMode']}")
    return said


def _wrong_shares(shares: Iterable[Mapping[str, Any]]) -> list[str]:
    """A share that nobody runs yet may be unverified; one that is False may not."""
    return [
        f"claim {share['claim']}: {name} is False ({share[key]['reason']}): {share[key]['message']}"
        for share in shares
        for name, key in (("Ready", "ready"), ("Enforced", "enforced"))
        if share[key]["status"] == "False"
    ]


def text(found: Mapping[str, Any]) -> list[str]:
    """For people, one block a node."""
    lines = [f"{found['node']}: {len(found['gpus'])} GPUs, {len(found['shares'])} shares"]
    for gpu in found["gpus"]:
        state = ", ".join([gpu["health"], *([f"withdrawn: {gpu['withdrawn']}"] if gpu["withdrawn"] else [])])
        driver = f"driver {gpu['driver']}" if gpu["driver"] else gpu["source"]
        lines.append(f"  gpu-{gpu['index']} {gpu['product']} {gpu['uuid']}  {driver}, MIG {gpu['migMode']}  {state}")
        lines += [_line(s) for s in found["shares"] if s["gpu"] == gpu["uuid"].lower()]
    known = {gpu["uuid"].lower() for gpu in found["gpus"]}
    lines += [f"  on a GPU that is not published:{_line(s)}" for s in found["shares"] if s["gpu"] not in known]
    return [*lines, *(f"  ! {wrong}" for wrong in found["wrong"])]


def _line(share: Mapping[str, Any]) -> str:
    pods = ", ".join(f"{name} {phase}" for name, phase in sorted(share["pods"].items())) or "no pod"
    enforced = f"{share['enforced']['status']} {share['enforced']['reason']}"
    return (
        f"    {share['device']:24} {share['computePercent']:3} % {share['memoryMebibytes']:6} MiB "
        f"{share['clients']:2} clients  {share['claim']} ({pods})  Enforced {enforced}"
    )
