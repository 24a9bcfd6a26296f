"""`gpulet doctor`: why a node is not ready for shares, each finding with its remedy. Pure."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from gpulet.agent.foreign import REMEDIES
from gpulet.api import names
from gpulet.cli.node import NODE_NAMESPACE, NodePart, Raw, facts

_KUBERNETES = (1, 36, 2)
_CONTAINERD = (2, 0, 0)
_AGENT, _RUNNER = "gpulet-agent", "gpulet-mps-runner"
_NUMBERS = re.compile(r"v?([0-9]+)\.([0-9]+)\.([0-9]+)")
_HEALTH_REMEDIES = {
    "degraded": "nothing new is put there; reset the GPU, or wait: it is taken back after five healthy minutes",
    "lost": "drain the node, reset the GPU or boot; it is taken back after five healthy minutes",
}


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    state: Literal["ok", "problem"]
    object: str
    message: str
    remedy: str = ""


def diagnose(part: NodePart, name: str | None) -> list[Finding]:
    """All findings, the cluster's first; raises UnknownNodeError."""
    nodes = part.named(name)
    found = [*_cluster(part)]
    if not nodes:
        found.append(
            Finding(
                "problem",
                "cluster",
                "no node has a pod or a slice of Gpulet",
                "kubectl apply --server-side -k manifests, and label or untaint the GPU nodes so that its pods fit",
            )
        )
    for node in nodes:
        for check in _NODE_CHECKS:
            found += check(part, node)
    return found


def policy(fault: str | None) -> Finding:
    """``fault``: why the controller's policy cannot be read."""
    where = f"ConfigMap {names.SYSTEM_NAMESPACE}/{names.POLICY_CONFIG_MAP}"
    if fault is None:
        return Finding("ok", where, "can be read, or is left out")
    return Finding(
        "problem",
        where,
        f"the controller keeps the last good policy, or with none plans nothing: {fault.removeprefix(f'{where}: ')}",
        f"kubectl edit configmap -n {names.SYSTEM_NAMESPACE} {names.POLICY_CONFIG_MAP}; it is read again at once",
    )


def _cluster(part: NodePart) -> Iterator[Finding]:
    classes = {c["metadata"]["name"] for c in part.device_classes}
    for name in (names.DEVICE_CLASS, names.SHARES_DEVICE_CLASS):
        if name in classes:
            yield Finding("ok", f"DeviceClass {name}", "exists")
        else:
            yield Finding("problem", f"DeviceClass {name}", "is missing", _INSTALL)
    present = {d["metadata"]["name"] for d in part.daemon_sets}
    for name in (_AGENT, _RUNNER):
        if name not in present:
            yield Finding("problem", f"DaemonSet {NODE_NAMESPACE}/{name}", "is missing", _INSTALL)


_INSTALL = "kubectl apply --server-side -k manifests"


def _versions(part: NodePart, node: Raw) -> Iterator[Finding]:
    info = (node.get("status") or {}).get("nodeInfo") or {}
    where = f"node {node['metadata']['name']}"
    kubelet, runtime = info.get("kubeletVersion", ""), info.get("containerRuntimeVersion", "")
    if _older(kubelet, _KUBERNETES):
        yield Finding(
            "problem",
            where,
            f"kubelet {kubelet} is older than 1.36.2",
            "upgrade Kubernetes: 1.36.0 and 1.36.1 can hand out overlapping MIG placements, older ones have no shares",
        )
    if runtime.startswith("containerd://") and _older(runtime.removeprefix("containerd://"), _CONTAINERD):
        yield Finding(
            "problem",
            where,
            f"{runtime} does not read CDI files by default",
            "upgrade to containerd 2, or set enable_cdi = true in its configuration and restart it",
        )


def _older(version: str, least: tuple[int, int, int]) -> bool:
    found = _NUMBERS.match(version)
    return found is not None and tuple(int(n) for n in found.groups()) < least


def _node_ready(part: NodePart, node: Raw) -> Iterator[Finding]:
    where = f"node {node['metadata']['name']}"
    for condition in (node.get("status") or {}).get("conditions") or ():
        if condition["type"] == "Ready" and condition["status"] != "True":
            yield Finding(
                "problem",
                where,
                f"is not Ready: {condition.get('message', '')}",
                "mend the node first; shares there wait",
            )
        if condition["type"] == "DiskPressure" and condition["status"] == "True":
            yield Finding("problem", where, "its disk is full", "free some: no share can be made without a claim file")


def _parts(part: NodePart, node: Raw) -> Iterator[Finding]:
    """Agent and runner, each ready on the node."""
    name = node["metadata"]["name"]
    for what, without in (
        (_AGENT, "nothing is published, and pods with shares neither start nor end"),
        (_RUNNER, "no MPS daemon runs: prepares fail with 'is mps-runner up on this node'"),
    ):
        pods = [p for p in part.parts() if _is(p, what) and p["spec"].get("nodeName") == name]
        if any(_ready(p) for p in pods):
            yield Finding("ok", f"{what} on {name}", "is ready")
        elif not pods:
            yield Finding(
                "problem",
                f"{what} on {name}",
                f"has no pod: {without}",
                f"kubectl -n {NODE_NAMESPACE} describe daemonset {what}; look at its node selector and tolerations",
            )
        for pod in pods if not any(_ready(p) for p in pods) else ():
            yield Finding(
                "problem",
                f"pod {NODE_NAMESPACE}/{pod['metadata']['name']}",
                f"is not ready ({_why(pod)}): {without}",
                f"kubectl -n {NODE_NAMESPACE} logs {pod['metadata']['name']}; its last line names the remedy",
            )


def _is(pod: Raw, what: str) -> bool:
    return bool((pod["metadata"].get("labels") or {}).get("app.kubernetes.io/name") == what)


def _ready(pod: Raw) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _why(pod: Raw) -> str:
    """What the container's state or the scheduler says, in its own words."""
    status = pod.get("status") or {}
    for of in status.get("containerStatuses") or ():
        waiting = (of.get("state") or {}).get("waiting") or {}
        ended = (of.get("lastState") or {}).get("terminated") or (of.get("state") or {}).get("terminated") or {}
        if ended.get("message"):
            return f"{waiting.get('reason', 'ended')}: {str(ended['message']).strip().splitlines()[-1]}"
        if waiting:
            return ": ".join(t for t in (waiting.get("reason"), waiting.get("message")) if t)
    said = [c.get("message", "") for c in status.get("conditions") or () if c["status"] != "True" and c.get("message")]
    return said[0] if said else str(status.get("phase", "Unknown"))


def _gpus(part: NodePart, node: Raw) -> Iterator[Finding]:
    name = node["metadata"]["name"]
    found = facts(part, node)
    has_agent = any(_is(p, _AGENT) and _ready(p) and p["spec"].get("nodeName") == name for p in part.parts())
    # Without an agent, that is what has to be mended.
    if not found["gpus"] and has_agent:
        yield Finding(
            "problem",
            f"node {name}",
            "publishes no GPU",
            "a node without GPUs needs no agent; else: the agent's log says what of the driver it cannot reach "
            "(ConfigMap gpulet-agent, key source: nvml)",
        )
    for gpu in found["gpus"]:
        where = f"GPU {gpu['uuid']} of {name}"
        problems = [*_gpu_problems(gpu, where)]
        yield from problems or [Finding("ok", where, f"{gpu['product']}, {gpu['devices']} devices published")]


def _gpu_problems(gpu: dict[str, Any], where: str) -> Iterator[Finding]:
    if gpu["withdrawn"]:
        remedy = REMEDIES.get(gpu["withdrawn"], "kubectl get events -n default tells who owns it")
        yield Finding("problem", where, f"is withdrawn: {gpu['withdrawn']}", remedy)
    if gpu["health"] != "healthy":
        yield Finding(
            "problem", where, f"is {gpu['health']}", _HEALTH_REMEDIES.get(gpu["health"], "see the agent's log")
        )
    if "after a reset" in gpu["migMode"]:
        yield Finding(
            "problem",
            where,
            f"MIG mode is {gpu['migMode']}",
            "reset the GPU (nvidia-smi --gpu-reset), or boot the node",
        )


def _shares(part: NodePart, node: Raw) -> Iterator[Finding]:
    remedies = {
        "DaemonRestarted": "wait: settings are applied again within seconds; its clients are being restarted",
        "Tampered": "the container changes its own limits or runs more processes than claimed; claim more clients",
        "AccountingOnly": "give the container a CPU limit of its share (simulated GPUs)",
    }
    for share in facts(part, node)["shares"]:
        for condition in ("ready", "enforced"):
            told = share[condition]
            if told["status"] == "False":
                said = f"{condition.capitalize()} is False ({told['reason']}): {told['message']}"
                remedy = remedies.get(told["reason"], "kubectl describe its pod; the agent's log has more")
                yield Finding("problem", f"claim {share['claim']}", said, remedy)


def _failed_prepares(part: NodePart, node: Raw) -> Iterator[Finding]:
    """The kubelet's own words, for pods that are still there and wait."""
    waiting = {
        (p["metadata"]["namespace"], p["metadata"]["name"])
        for p in part.pods
        if p["spec"].get("nodeName") == node["metadata"]["name"] and (p.get("status") or {}).get("phase") == "Pending"
    }
    last: dict[tuple[str, str], str] = {}
    for event in part.events:
        of = event.get("regarding") or {}
        key = (of.get("namespace", ""), of.get("name", ""))
        if event.get("reason") == "FailedPrepareDynamicResources" and key in waiting:
            last[key] = event.get("note", "")
    for (namespace, name), note in sorted(last.items()):
        yield Finding(
            "problem", f"pod {namespace}/{name}", note, "mend what it names; the kubelet tries again within 90 s"
        )


_NODE_CHECKS: tuple[Callable[[NodePart, Raw], Iterator[Finding]], ...] = (
    _node_ready,
    _versions,
    _parts,
    _gpus,
    _shares,
    _failed_prepares,
)


def text(findings: list[Finding]) -> list[str]:
    """For people: what is wrong, each with what to do, then how much was looked at."""
    lines = []
    for finding in findings:
        if finding.state == "problem":
            lines += [f"! {finding.object}: {finding.message}", f"    {finding.remedy}"]
    problems = sum(f.state == "problem" for f in findings)
    fine = len(findings) - problems
    return [*lines, f"{problems} problems, {fine} things in order" if problems else f"all {fine} things are in order"]
