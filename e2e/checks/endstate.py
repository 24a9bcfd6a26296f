"""The state that a cluster comes to rest in, in a form that two runs can be compared in."""

import json
import subprocess
import sys
from collections import Counter
from typing import Any

from e2e.cluster.layout import Layout
from e2e.kubectl import Kubectl
from gpulet.api import names
from gpulet.controller.inventory import quantity

Share = tuple[str, str, str, int, int, tuple[str, ...]]
"""(node, GPU, MIG placement, percent, memory MiB, models)."""


def plan(kubectl: Kubectl) -> dict[str, Any]:
    """The JSON of `gpulet plan --from-cluster`: what the controller would have now."""
    command = [sys.executable, "-m", "gpulet.cli.main", "plan", "--from-cluster", "-o", "json"]
    command += ["--kubeconfig", str(kubectl.kubeconfig)]
    made: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return made


def planned(plan: dict[str, Any]) -> Counter[Share]:
    """The shares of a `gpulet plan -o json`."""
    return Counter(
        (g["node"], g["gpu"], _mig(g["mig"]), g["computePercent"], _mib(g["memory"]), _models(g["models"]))
        for g in plan["gpulets"]
    )


def gpulets(kubectl: Kubectl) -> Counter[Share]:
    """The shares of all Gpulets that serve."""
    found: Counter[Share] = Counter()
    for item in kubectl.list("gpulets.gpulet.dev", "-A"):
        spec, device = item["spec"], item["spec"]["device"]
        models = _models(spec.get("models") or ())
        share = (device["node"], device["gpu"], _mig(device.get("mig")), spec["computePercent"], _mib(spec["memory"]))
        found[(*share, models)] += 1
    return found


def mismatches(kubectl: Kubectl) -> list[str]:
    """Gpulets without exactly one allocated claim of its size and one ready pod, and children without a Gpulet."""
    wanted = {_key(item): item for item in kubectl.list("gpulets.gpulet.dev", "-A")}
    managed = names.LABEL_GPULET
    claims = {_key(item): item for item in kubectl.list("resourceclaims", "-A", "-l", managed)}
    pods = {_key(item): item for item in kubectl.list("pods", "-A", "-l", managed)}
    wrong = [f"claim {key} has no Gpulet" for key in sorted(claims.keys() - wanted.keys())]
    wrong += [f"pod {key} has no Gpulet" for key in sorted(pods.keys() - wanted.keys())]
    for key, gpulet in sorted(wanted.items()):
        wrong += [f"{key}: {text}" for text in _wrong(gpulet, claims.get(key), pods.get(key))]
    return wrong


def _wrong(gpulet: dict[str, Any], claim: dict[str, Any] | None, pod: dict[str, Any] | None) -> list[str]:
    results = (((claim or {}).get("status") or {}).get("allocation") or {}).get("devices", {}).get("results") or []
    wrong = []
    if len(results) != 1:
        wrong.append(f"{len(results)} allocations instead of one")
    else:
        consumed = results[0].get("consumedCapacity") or {}
        percent = int(quantity(consumed.get("computePercent", "0")))
        if percent != gpulet["spec"]["computePercent"]:
            wrong.append(f"{percent} % allocated, {gpulet['spec']['computePercent']} % in its spec")
        if not results[0]["pool"].endswith(gpulet["spec"]["device"]["gpu"].lower()):
            wrong.append(f"allocated from {results[0]['pool']}, planned on {gpulet['spec']['device']['gpu']}")
    conditions = ((pod or {}).get("status") or {}).get("conditions") or ()
    if not any(c["type"] == "Ready" and c["status"] == "True" for c in conditions):
        wrong.append("its pod is not ready")
    return wrong


def conditions(kubectl: Kubectl, *, without: frozenset[str] = frozenset({"ObjectiveMet"})) -> dict[str, dict[str, str]]:
    """Condition statuses of every object of ours, by kind and name. ObjectiveMet depends on the load: left out."""
    found = {}
    for kind in ("inferencemodels", "tuningjobs", "modelprofiles", "gpulets"):
        for item in kubectl.list(f"{kind}.gpulet.dev", "-A"):
            listed = (item.get("status") or {}).get("conditions") or ()
            found[f"{kind} {_key(item)}"] = {c["type"]: c["status"] for c in listed if c["type"] not in without}
    return found


def unhealthy(seen: dict[str, dict[str, str]]) -> list[str]:
    """Conditions that an undisturbed cluster at rest does not have."""
    good = {"Reconciling": "False", "Stalled": "False"}
    return sorted(
        f"{name}: {type_}={status}"
        for name, statuses in seen.items()
        for type_, status in statuses.items()
        if status != good.get(type_, "True")
    )


def node_files(cluster: Layout) -> dict[str, Counter[str]]:
    """How many CDI files, claim files and MPS daemons each node holds."""
    patterns = {
        "cdi": "run/cdi/gpulet.dev-*",
        "claims": "var/lib/gpulet/claims/*.json",
        "daemons": "run/gpulet/mps/*.json",
    }
    return {
        node.name: Counter({name: len(list(node.folder.glob(pattern))) for name, pattern in patterns.items()})
        for node in cluster.nodes
    }


def expected_node_files(kubectl: Kubectl, cluster: Layout) -> dict[str, Counter[str]]:
    """One CDI file and one claim file a Gpulet, one daemon a device in use."""
    found = {node.name: Counter({"cdi": 0, "claims": 0, "daemons": 0}) for node in cluster.nodes}
    devices = set()
    for item in kubectl.list("gpulets.gpulet.dev", "-A"):
        device = item["spec"]["device"]
        found[device["node"]].update({"cdi": 1, "claims": 1})
        devices.add((device["node"], device["gpu"], _mig(device.get("mig"))))
    for node, _, _ in devices:
        found[node]["daemons"] += 1
    return found


def versions(kubectl: Kubectl) -> dict[str, tuple[int, str]]:
    """(generation, resourceVersion of children) of everything that an apply of the same files may not touch.

    A status write moves our kinds' own resourceVersion: of them the generation counts.
    """
    found: dict[str, tuple[int, str]] = {}
    for kind in ("inferencemodels", "tuningjobs", "modelprofiles", "gpulets"):
        for item in kubectl.list(f"{kind}.gpulet.dev", "-A"):
            found[f"{kind} {_key(item)}"] = (item["metadata"]["generation"], "")
    managed = f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY}"
    for kind in ("services", "jobs"):
        for item in kubectl.list(kind, "-A", "-l", managed):
            found[f"{kind} {_key(item)}"] = (0, item["metadata"]["resourceVersion"])
    for kind in ("pods", "resourceclaims"):
        # The kubelet and the agent write their statuses at any time; what Gpulet wrote is the rest.
        for item in kubectl.list(kind, "-A", "-l", managed):
            ours = {"uid": item["metadata"]["uid"], "spec": item["spec"], "labels": item["metadata"].get("labels")}
            found[f"{kind} {_key(item)}"] = (0, json.dumps(ours, sort_keys=True))
    return found


def _key(item: dict[str, Any]) -> str:
    return f"{item['metadata'].get('namespace', '')}/{item['metadata']['name']}"


def _mig(mig: dict[str, Any] | None) -> str:
    return f"{mig['profile']}@{mig['start']}" if mig else ""


def _mib(text: str) -> int:
    return round(quantity(text) / 2**20)


def _models(models: Any) -> tuple[str, ...]:
    return tuple(sorted(f"{m['name']} b{m['batch']} i{m.get('instances', 1)}" for m in models))
