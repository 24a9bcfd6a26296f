"""Gpulet on the demo's cluster, and the demo's objects on Gpulet."""

import json
from collections.abc import Callable
from time import monotonic, sleep

from e2e.cluster.commands import Progress
from e2e.cluster.paths import REPOSITORY
from e2e.cluster.providers import choose
from e2e.demo import models
from e2e.kubectl import Kubectl

NAMESPACE = "demo"
IMAGES = ("operator", "agent", "triton", "tuner")
OVERLAY = REPOSITORY / "manifests/overlays/demo"
EXAMPLES = REPOSITORY / "examples/demo"
# The runners of the MPS daemons change only when their pods are deleted: clients outlive upgrades.
_RESTARTED = (("gpulet-system", "deployment/gpulet-controller"), ("gpulet-node", "daemonset/gpulet-agent"))
_PROGRAMS = ("gpulet-controller", "gpulet-agent", "gpulet-mps-runner")
# One slice with the counters and one with the devices for each of the overlay's four GPUs.
SLICES = 8


def cluster(name: str, progress: Progress) -> Kubectl:
    """A cluster with the product's images on every node."""
    provider = choose(name)
    kubectl = Kubectl(provider.up(progress))
    provider.load(IMAGES, progress)
    return kubectl


def gpulet(kubectl: Kubectl, progress: Progress) -> None:
    """Install the overlay for demos and wait until its programs run and every GPU is published."""
    progress("installing Gpulet: kubectl apply --server-side -k manifests/overlays/demo")
    upgrade = kubectl.get("deployment", "gpulet-controller", "gpulet-system") is not None
    apply = ("apply", "--server-side", "--force-conflicts", "-k", str(OVERLAY))
    # A CRD is not served the moment it is made; what needs it is applied again.
    eventually("the manifests to be accepted", lambda: kubectl.run(*apply), timeout_s=60)
    for namespace, program in _RESTARTED:
        if upgrade:  # the images keep their name, so that only a restart brings a new one
            kubectl.run("-n", namespace, "rollout", "restart", program)
        kubectl.run("-n", namespace, "rollout", "status", program, "--timeout=120s", timeout_s=150)
    eventually("Gpulet's pods to be ready", lambda: _pods_ready(kubectl), timeout_s=60)
    eventually("every GPU to be published", lambda: len(kubectl.list("resourceslices")) >= SLICES, timeout_s=60)


def _pods_ready(kubectl: Kubectl) -> bool:
    pods = kubectl.list("pods", "-A", "-l", f"app.kubernetes.io/name in ({','.join(_PROGRAMS)})")
    conditions = [c for pod in pods for c in pod["status"].get("conditions", ()) if c["type"] == "Ready"]
    return len(pods) == len(conditions) and all(c["status"] == "True" for c in conditions)


def examples(kubectl: Kubectl, progress: Progress) -> None:
    """Apply examples/demo, the model files first; applying them again changes nothing."""
    progress("applying examples/demo: three InferenceModels, one TuningJob, two given ModelProfiles")
    kubectl.run("apply", "--server-side", "-f", str(EXAMPLES / "namespace.yaml"))
    kubectl.apply(*(models.config_map(NAMESPACE, name) for name in sorted(models.NETS)))
    kubectl.run("apply", "--server-side", "-f", str(EXAMPLES))


def eventually(what: str, look: Callable[[], object], *, timeout_s: float, period_s: float = 1.0) -> None:
    """Ask until the answer is true; an error is an answer that is not. Raises TimeoutError that names the last one."""
    deadline, last = monotonic() + timeout_s, "it is not so"
    while True:
        try:
            if look():
                return
        except RuntimeError as error:
            last = str(error)
        if monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s:g} s for {what}: {last}")
        sleep(period_s)


def context(kubectl: Kubectl) -> str:
    """How a person uses the cluster."""
    return f"export KUBECONFIG={kubectl.kubeconfig}"


def server_version(kubectl: Kubectl) -> str:
    return str(json.loads(kubectl.run("version", "-o", "json"))["serverVersion"]["gitVersion"])
