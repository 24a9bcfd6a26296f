"""What must be gone when Gpulet's objects are gone."""

from e2e.cluster.layout import Layout
from e2e.kubectl import Kubectl
from gpulet.api import names

_OURS = ("inferencemodels.gpulet.dev", "tuningjobs.gpulet.dev", "modelprofiles.gpulet.dev", "gpulets.gpulet.dev")


def in_cluster(kubectl: Kubectl) -> list[str]:
    """Objects of our kinds, and what Gpulet made of Kubernetes' own, as kind/namespace/name."""
    managed = f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY}"
    found = [(kind, item) for kind in _OURS for item in kubectl.list(kind, "-A")]
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
