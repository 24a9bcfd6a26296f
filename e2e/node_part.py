"""The node part on a real cluster, for tests: claims and client pods to make, and looks at API server and nodes."""

import json
import os
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from e2e.cluster import local, node
from e2e.cluster.binaries import ensure_binaries
from e2e.cluster.commands import say
from e2e.cluster.images import build, load_into
from e2e.cluster.layout import Layout, Node

REPOSITORY = Path(__file__).resolve().parent.parent
NAMESPACE = "gpulet-node"
IMAGE = "localhost/gpulet-agent:dev"
A100, H100 = "NVIDIA-A100-SXM4-80GB", "NVIDIA-H100-80GB-HBM3"
# Index 0: an A100 uncut, index 1: an H100 that may be cut. All of a node's GPUs stand for half a core.
AGENT_CONFIG = f"""
gpus:
  - {{product: {A100}, mig: false, millicores: 250}}
  - {{product: {H100}, mig: true, millicores: 250}}
verifyPeriodSeconds: 1
taintClearSeconds: 6
ownersPeriodSeconds: 5
"""
T = TypeVar("T")


def eventually(look: Callable[[], T], what: str, timeout_s: float = 40.0) -> T:
    """The first true value that ``look`` gives; raises AssertionError that names ``what`` and the last look."""
    deadline = time.monotonic() + timeout_s
    while not (seen := look()):
        assert time.monotonic() < deadline, f"waited {timeout_s:g} s for {what}; last seen: {seen!r}"
        time.sleep(0.3)
    return seen


@dataclass(frozen=True)
class NodePart:
    """The cluster with the node part installed."""

    cluster: Layout

    @classmethod
    def install(cls, name: str) -> "NodePart":
        """Brings the cluster up and the node part into it; waits until every GPU is published."""
        part = cls(local.up(name, say))
        load_into(list(part.cluster.nodes), [build("agent", say)], ensure_binaries(say))
        part.kubectl("label", "nodes", "--all", "--overwrite", "gpulet.dev/gpu=true")
        part.kubectl("apply", "--server-side", "--force-conflicts", "-k", str(REPOSITORY / "manifests/node"))
        config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "gpulet-agent", "namespace": NAMESPACE}}
        part.apply(config | {"data": {"agent.yaml": AGENT_CONFIG}})
        # The runner's pods change only when they are deleted; both start with the configuration and image of now.
        for daemon_set in ("gpulet-agent", "gpulet-mps-runner"):
            part.kubectl("-n", NAMESPACE, "delete", "pods", "-l", f"app.kubernetes.io/name={daemon_set}", "--wait=true")
        for daemon_set in ("gpulet-agent", "gpulet-mps-runner"):
            part.wait_for_pods(daemon_set)
        eventually(lambda: len(part.slices()) == 8, "two slices for each of the four GPUs")
        return part

    def wait_for_pods(self, daemon_set: str) -> None:
        def all_ready() -> bool:
            status = self.get("daemonset", daemon_set, NAMESPACE)["status"]
            wanted = status["desiredNumberScheduled"]
            return wanted == len(self.cluster.nodes) == status.get("numberReady") == status["currentNumberScheduled"]

        eventually(all_ready, f"{daemon_set} to be ready on every node")

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True, **environment: str) -> str:
        command = [str(REPOSITORY / ".venv/bin/kubectl"), *arguments]
        variables = os.environ | {"KUBECONFIG": str(self.cluster.kubeconfig)} | environment
        done = subprocess.run(
            command, input=stdin, env=variables, capture_output=True, text=True, check=False, timeout=120
        )
        if check and done.returncode:
            raise AssertionError(f"kubectl {' '.join(arguments)}: {done.stderr}")
        return done.stdout + ("" if check else done.stderr)

    def apply(self, *objects: dict[str, Any]) -> None:
        items = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(items))

    def get(self, kind: str, name: str, namespace: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.kubectl("-n", namespace, "get", kind, name, "-o", "json"))
        return found

    def all(self, kind: str, *arguments: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.kubectl("get", kind, *arguments, "-o", "json"))["items"]
        return found

    def slices(self, of: str | None = None) -> list[dict[str, Any]]:
        return [s for s in self.all("resourceslices") if of is None or s["spec"]["nodeName"] == of]

    def uuid(self, node_name: str, index: int) -> str:
        """Of a GPU, as its slices say."""
        for device in (d for s in self.slices(node_name) for d in s["spec"].get("devices", ())):
            if device["attributes"]["index"]["int"] == index:
                return str(device["attributes"]["uuid"]["string"])
        raise AssertionError(f"{node_name} publishes no GPU {index}")

    def node(self, name: str) -> Node:
        return next(of for of in self.cluster.nodes if of.name == name)

    def agent_pod(self, node_name: str) -> dict[str, Any]:
        selector = ["-n", NAMESPACE, "-l", "app.kubernetes.io/name=gpulet-agent", "--field-selector"]
        (pod,) = self.all("pods", *selector, f"spec.nodeName={node_name}")
        return pod

    def daemons(self, node_name: str) -> dict[str, int]:
        """PIDs of the node's MPS daemons by device."""
        found = {}
        for path in (self.node(node_name).folder / "run/gpulet/mps").glob("*/daemon.json"):
            with suppress(FileNotFoundError):
                found[path.parent.name] = int(json.loads(path.read_text())["pid"])
        return found

    def leftovers(self, node_name: str) -> list[str]:
        """What a node should not hold without any claim."""
        folder = self.node(node_name).folder
        found = [*(folder / "run/cdi").glob("gpulet.dev-*"), *(folder / "var/lib/gpulet/claims").glob("*")]
        found += [p for p in (folder / "run/gpulet/mps").glob("*")]
        return [str(path.relative_to(folder)) for path in found]

    def restart(self, daemon: str) -> None:
        local.restart(self.cluster, daemon, say)

    def run_on(self, node_name: str, *command: str) -> str:
        inside = [str(word) for word in node.inside(self.node(node_name), list(command))]
        return subprocess.run(inside, capture_output=True, text=True, check=True, timeout=60).stdout


@dataclass(frozen=True)
class Tenant:
    """A namespace under Pod Security ``restricted`` with claims and client pods."""

    part: NodePart
    namespace: str

    def share(
        self,
        name: str,
        *,
        gpu: int = 0,
        node_name: str = "node1",
        mig: tuple[str, int] | None = None,
        percent: int = 40,
        memory: str = "10Gi",
        cpu: str | None = "limit",
        user: int = 65532,
        environment: dict[str, str] | None = None,
        grace_s: int = 1,
    ) -> None:
        """A claim and a client pod of one name. ``cpu``: "limit" for the share of the simulated GPU's CPU."""
        uuid = self.part.uuid(node_name, gpu)
        attribute = "device.attributes['gpulet.dev'].?"
        terms = [f"{attribute}uuid.orValue('') == '{uuid}'"]
        if mig is None:
            terms.append(f"{attribute}type.orValue('') == 'gpu'")
        else:
            terms.append(f"{attribute}profile.orValue('') == '{mig[0]}'")
            terms.append(f"{attribute}placementStart.orValue(-1) == {mig[1]}")
        request = {
            "deviceClassName": "gpulet.dev",
            "selectors": [{"cel": {"expression": " && ".join(terms)}}],
            "capacity": {"requests": {"computePercent": str(percent), "memory": memory, "clients": "1"}},
        }
        claim = {"devices": {"requests": [{"name": "gpulet", "exactly": request}]}}
        compute_slices = 7 if mig is None else int(mig[0][0])
        limit = f"{max(1, -(-percent * (250 * compute_slices // 7) // 100))}m" if cpu == "limit" else cpu
        resources: dict[str, Any] = {"claims": [{"name": "gpulet"}]}
        if limit:
            resources |= {"limits": {"cpu": limit}, "requests": {"cpu": limit}}
        container = {
            "name": "client",
            "image": IMAGE,
            "imagePullPolicy": "IfNotPresent",
            "command": ["python3", "-m", "gpulet.nvidia.simulated_client"],
            "env": [{"name": k, "value": v} for k, v in (environment or {}).items()],
            "resources": resources,
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "readOnlyRootFilesystem": True,
            },
        }
        pod = {
            "resourceClaims": [{"name": "gpulet", "resourceClaimName": name}],
            "nodeSelector": {"kubernetes.io/hostname": node_name},
            "terminationGracePeriodSeconds": grace_s,
            "automountServiceAccountToken": False,
            "securityContext": {"runAsNonRoot": True, "runAsUser": user, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
        }
        metadata = {"name": name, "namespace": self.namespace}
        self.part.apply(
            {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata, "spec": claim},
            {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod},
        )

    def pod(self, name: str) -> dict[str, Any]:
        return self.part.get("pod", name, self.namespace)

    def wait_running(self, name: str) -> None:
        eventually(lambda: self._is_running(name), f"pod {name} to run")

    def _is_running(self, name: str) -> bool:
        states = self.pod(name)["status"].get("containerStatuses", [])
        return bool(states) and all("running" in state["state"] for state in states)

    def unschedulable(self, name: str) -> str:
        """Why the scheduler leaves the pod Pending, once it said so."""

        def said() -> str:
            for condition in self.pod(name)["status"].get("conditions", ()):
                if condition["type"] == "PodScheduled" and condition["status"] == "False":
                    return str(condition["message"])
            return ""

        return eventually(said, f"the scheduler's word about {name}")

    def conditions(self, name: str) -> dict[str, tuple[str, str]]:
        """(status, reason) of the claim's conditions by type."""
        devices = self.part.get("resourceclaim", name, self.namespace).get("status", {}).get("devices", [])
        return {c["type"]: (c["status"], c["reason"]) for d in devices for c in d.get("conditions", ())}

    def wait_enforced(self, name: str, *expected: str) -> None:
        eventually(lambda: self.conditions(name).get("Enforced") == expected, f"{name} to be Enforced {expected}")

    def environment(self, name: str) -> dict[str, str]:
        """What the client's process sees."""
        log = eventually(lambda: self.part.kubectl("-n", self.namespace, "logs", name), f"the log of {name}")
        seen: dict[str, str] = json.loads(log.splitlines()[-1])
        return seen

    def delete(self, name: str) -> None:
        self.part.kubectl("-n", self.namespace, "delete", f"pod/{name}", f"resourceclaim/{name}", "--wait=true")
