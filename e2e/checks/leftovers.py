"""What must be gone when Gpulet's objects are gone."""

from e2e.cluster.layout import Layout
from e2e.kubectl import Kubectl
from gpulet.api import names

_OURS = ("inferencemodels.gpulet.dev", "tuningjobs.gpulet.dev", "modelprofiles.gpulet.dev", "gpulets.gpulet.dev")


def kinds(kubectl: Kubectl) -> list[str]:
    """Those of ours that the cluster has: where Gpulet is uninstalled, none."""
    names_there = {crd["metadata"]["name"] for crd in kubectl.list("customresourcedefinitions")}
    return [kind for kind in _OURS if kind in names_there]


def in_cluster(kubectl: Kubectl) -> list[str]:
    """Objects of our kinds, and what Gpulet made of Kubernetes' own, as kind/namespace/name."""
    managed = f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY}"
    found = [(kind, item) for kind in kinds(kubectl) for item in kubectl.list(kind, "-A")]
    found += [
        (kind, item)
        for kind in ("pods", "services", "jobs", "networkpolicies", "resourceclaims")
        for item in kubectl.list(kind, "-A", "-l", managed)
    ]
    return sorted(f"{kind}/{item['metadata'].get('namespace', '')}/{item['metadata']['name']}" for kind, item in found)


def on_nodes(cluster: Layout) -> list[str]:
    """CDI files, claim files and files of MPS daemons on the nodes of a local cluster."""
    found = []
    for node in cluster.nodes:
        for pattern in ("run/cdi/gpulet.dev-*", "var/lib/gpulet/claims/*", "run/gpulet/mps/*"):
            found += [f"{node.name}:/{path.relative_to(node.folder)}" for path in node.folder.glob(pattern)]
    return sorted(found)
