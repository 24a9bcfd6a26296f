"""Take the demo down in the order in which nothing is left behind, and say what was checked."""

from e2e.checks import leftovers
from e2e.cluster.commands import Progress
from e2e.cluster.layout import find
from e2e.cluster.providers import choose
from e2e.demo.install import NAMESPACE, eventually
from e2e.kubectl import Kubectl, KubectlError

GPULETS = "gpulets.gpulet.dev"


def objects(kubectl: Kubectl, progress: Progress) -> None:
    """Delete Gpulet's objects and the demo's namespace while the controller and the agents are there to clean up.

    Raises TimeoutError with the names of what did not go.
    """
    progress("deleting all Gpulet objects and the demo's namespace")
    kubectl.run("delete", "jobs", "-n", NAMESPACE, "--all", "--ignore-not-found")
    # Gpulets last: those of a model that is still there would be made again. Uninstalled, there are no kinds at all.
    kinds = leftovers.kinds(kubectl)
    for some in ([k for k in kinds if k != GPULETS], [k for k in kinds if k == GPULETS]):
        if some:
            kubectl.run("delete", ",".join(some), "--all", "--all-namespaces", "--ignore-not-found")
    found: list[str] = []

    def nothing_left() -> bool:
        found[:] = leftovers.in_cluster(kubectl)
        return not found

    try:
        eventually("pods and claims to go", nothing_left, timeout_s=120)
    except TimeoutError as error:
        raise TimeoutError(f"{error}; still there: {', '.join(found)}") from None
    kubectl.run("delete", "namespace", NAMESPACE, "--ignore-not-found", timeout_s=120)


def down(name: str, progress: Progress) -> bool:
    """Everything, cluster included; False if something was left behind on a node."""
    provider = choose(name)
    clean = True
    try:
        kubectl = Kubectl(provider.kubeconfig())
        objects(kubectl, progress)
        progress("no pod, claim or Gpulet object is left")
    except SystemExit:
        progress(f"there is no cluster {name}")
    except (KubectlError, TimeoutError) as error:
        progress(f"the cluster does not answer as it should, it is removed as it is: {error}")
        clean = False
    if (layout := find(name)) is not None and clean:
        try:
            eventually("nodes to be clean", lambda: not leftovers.on_nodes(layout), timeout_s=60)
            progress("no CDI file, claim file or MPS daemon is left on a node")
        except TimeoutError:
            clean = False
            progress(f"left on nodes: {', '.join(leftovers.on_nodes(layout))}")
    provider.down(progress)
    return clean
