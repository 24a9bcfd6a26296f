"""The demo's load: one Job a model that sends Poisson requests to its Service, bounded in time and count."""

import json
from typing import Any
from urllib.parse import urlsplit

from e2e.demo.install import NAMESPACE
from e2e.kubectl import Kubectl
from gpulet.controller.world import World

IMAGE = "localhost/gpulet-operator:dev"
LABEL = "demo.gpulet.dev/load"


def job(name: str, *, address: str, model: str, rate_per_s: float, seconds: int) -> dict[str, Any]:
    """A Job that loads ``model`` at ``address`` (host:port) for ``seconds``, then tells what it measured."""
    host = address.rsplit(":", 1)[0]
    arguments = ["bench", f"http://{address}/v2/models/{model}", "--rate", f"{rate_per_s:g}"]
    arguments += ["--seconds", str(seconds), "--allow", host, "--seed", "1", "-o", "json"]
    container = {
        "name": "bench",
        "image": IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "args": arguments,
        "resources": {"requests": {"cpu": "30m", "memory": "96Mi"}, "limits": {"cpu": "150m", "memory": "160Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
    }
    pod = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 2,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {LABEL: model}},
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": seconds + 60,
            "ttlSecondsAfterFinished": 3600,
            "template": {"metadata": {"labels": {LABEL: model}}, "spec": pod},
        },
    }


def start(kubectl: Kubectl, world: World, name: str, *, prefix: str, seconds: int, factor: float = 1.0) -> bool:
    """Load one model at its stated rate times ``factor``; False while it has no address yet."""
    model = world.models[NAMESPACE, name]
    service = kubectl.get("service", name, NAMESPACE)
    if model.status.url is None or service is None:
        return False
    address = f"{service['spec']['clusterIP']}:{urlsplit(model.status.url).port}"
    rate = (model.spec.load.requests_per_second or 1.0) * factor
    kubectl.apply(job(f"{prefix}-{name}", address=address, model=name, rate_per_s=rate, seconds=seconds))
    return True


def reports(kubectl: Kubectl, prefix: str, names: list[str]) -> dict[str, dict[str, Any]]:
    """What ended loads measured, by model."""
    found = {}
    for name in names:
        status = (kubectl.get("job", f"{prefix}-{name}", NAMESPACE) or {}).get("status") or {}
        if status.get("succeeded") or status.get("failed"):
            text = kubectl.run("-n", NAMESPACE, "logs", f"job/{prefix}-{name}")
            # Progress lines come before the report.
            found[name] = json.loads(text[text.index("[\n") :])[0] if "[\n" in text else {"failed": text[-300:]}
    return found


def stop(kubectl: Kubectl) -> None:
    """End every load of the demo."""
    kubectl.run("-n", NAMESPACE, "delete", "jobs", "-l", LABEL, "--ignore-not-found", "--cascade=foreground")
