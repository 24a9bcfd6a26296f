"""Ending one part of Gpulet the hard way, as a crash or an impatient admin would."""

from e2e.cluster import local
from e2e.cluster.commands import say
from e2e.cluster.layout import Layout
from e2e.kubectl import Kubectl

VICTIMS = ("gpulet-controller", "gpulet-agent", "gpulet-mps-runner", "kubelet")


def kill(cluster: Layout, kubectl: Kubectl, victim: str, node: str) -> str:
    """Ends ``victim`` (on ``node``, where it runs on each) without grace; answers what was done."""
    if victim == "kubelet":
        local.restart(cluster, f"{node}-kubelet", say, gently=False)
        return f"kubelet {node}"
    of_node = [] if victim == "gpulet-controller" else ["--field-selector", f"spec.nodeName={node}"]
    namespace = "gpulet-system" if victim == "gpulet-controller" else "gpulet-node"
    selector = ["-l", f"app.kubernetes.io/name={victim}", *of_node]
    kubectl.run("-n", namespace, "delete", "pods", *selector, "--grace-period=0", "--force")
    return victim if not of_node else f"{victim} {node}"
