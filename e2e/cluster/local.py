"""The local cluster as a whole: up, down, status. Every step makes only what is missing, so `up` also repairs."""

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic

from e2e.cluster import cgroups, controlplane, daemons, network, node, sysctls, volumes
from e2e.cluster.binaries import ensure_binaries
from e2e.cluster.commands import Progress, run, succeeds, wait_until
from e2e.cluster.images import fixture_image, load_into
from e2e.cluster.layout import RECORD, Layout, Node, claim, find
from e2e.cluster.packages import FOR_THE_CLUSTER, ensure_packages
from e2e.cluster.paths import locked, state_root
from e2e.cluster.pki import ensure_pki


def up(name: str, progress: Progress) -> Layout:
    """Bring the cluster of that name up, or complete or repair it; return when both nodes are Ready."""
    ensure_packages(FOR_THE_CLUSTER, progress)
    binaries = ensure_binaries(progress)
    with locked(_lock(name)):
        began = monotonic()
        cluster = claim(name)
        if complete(cluster) and _nodes_are_ready(cluster, binaries):
            volumes.ensure_volumes(cluster, binaries)
            progress(f"cluster {name} is up already")
            return cluster
        try:
            _start(cluster, binaries, progress)
        except (RuntimeError, TimeoutError):
            progress(f"cluster {name} did not come up; logs are in {cluster.logs}; remove it with `down`")
            raise
        progress(f"cluster {name} is up after {monotonic() - began:.1f} s: export KUBECONFIG={cluster.kubeconfig}")
        return cluster


def _start(cluster: Layout, binaries: Path, progress: Progress) -> None:
    sysctls.save_and_raise()
    if network.address_is_in_use(cluster):
        raise SystemExit(f"10.99.{cluster.slot}.0/24 is routed elsewhere on this machine; remove that route")
    network.ensure_network(cluster)
    pki = ensure_pki(cluster)
    progress(f"starting cluster {cluster.name} in slot {cluster.slot}: API server at {cluster.server}")
    controlplane.start_api_server(cluster, binaries, pki)

    def runtime(of: Node) -> None:
        node.start_containerd(of, binaries, pki, progress)
        load_into([of], [fixture_image("pause", binaries)], binaries)

    # containerd needs no API server, so both come up at once.
    _on_both(cluster, runtime)
    controlplane.wait_for_api_server(cluster, binaries)
    controlplane.start_controllers(cluster, binaries, pki)
    _on_both(cluster, lambda of: node.start_kubelet(of, binaries, pki))
    volumes.ensure_volumes(cluster, binaries)
    wait_until("both nodes to be Ready", lambda: _nodes_come_up(cluster, binaries), 90)
    wait_until("service accounts", lambda: _has_default_service_account(cluster, binaries), 30)


def _on_both(cluster: Layout, step: Callable[[Node], None]) -> None:
    with ThreadPoolExecutor() as pool:
        list(pool.map(step, cluster.nodes))


def down(name: str, progress: Progress) -> None:
    """Remove all of the cluster of that name, from whatever state it is in. No such cluster is no error."""
    with locked(_lock(name)):
        cluster = find(name)
        if cluster is None:
            progress(f"there is no cluster {name}")
        else:
            _remove(cluster)
            progress(f"cluster {name} is down")
    sysctls.restore_after_the_last()


def _remove(cluster: Layout) -> None:
    names = [cluster.cgroup, *(of.cgroup for of in cluster.nodes)]
    cgroups.kill_members(names)
    for cgroup in names:
        cgroups.remove_everywhere(cgroup)
    network.remove_network(cluster)
    for entry in cluster.folder.iterdir():
        if entry.name != RECORD:
            run(["rm", "-rf", "--one-file-system", entry])
    # The record goes last: until then a `down` that was killed can be repeated.
    shutil.rmtree(cluster.folder)


def existing(name: str) -> Layout:
    """The cluster of that name.

    Raises SystemExit that says how to make it when there is none.
    """
    if (cluster := find(name)) is None:
        raise SystemExit(f"there is no cluster {name}: python -m e2e.cluster up --name {name}")
    return cluster


def complete(cluster: Layout) -> bool:
    """Whether every process of the cluster runs."""
    return all(pid is not None for pid in processes(cluster).values())


def processes(cluster: Layout) -> dict[str, int | None]:
    """Every daemon of the cluster with its pid, None for one that does not run."""
    names = [*controlplane.NAMES, *(node.part(of, name) for of in cluster.nodes for name in node.PARTS)]
    return {name: daemons.running(cluster, name) for name in names}


def restart(cluster: Layout, daemon: str, progress: Progress, *, gently: bool = True) -> None:
    """End one daemon and start it again, as an upgrade (or, not gently, a crash) would; its node's pods live on."""
    if daemon not in processes(cluster) or daemon.endswith(node.HOLDER):
        known = ", ".join(name for name in processes(cluster) if not name.endswith(node.HOLDER))
        raise SystemExit(f"{daemon}: no such daemon; there are {known}")
    with locked(_lock(cluster.name)):
        daemons.stop(cluster, daemon, gently=gently)
    up(cluster.name, progress)


def _nodes_come_up(cluster: Layout, binaries: Path) -> bool:
    for name, pid in processes(cluster).items():
        if pid is None:
            raise RuntimeError(f"{name} ended at once: {daemons.last_words(cluster, name)}")
    return _nodes_are_ready(cluster, binaries)


def _nodes_are_ready(cluster: Layout, binaries: Path) -> bool:
    try:
        nodes = json.loads(run(controlplane.kubectl(cluster, binaries, "get", "nodes", "-o", "json")))["items"]
    except RuntimeError:
        return False
    ready = [
        condition["status"] == "True"
        for of in nodes
        for condition in of["status"].get("conditions", [])
        if condition["type"] == "Ready"
    ]
    return len(ready) == len(cluster.nodes) and all(ready)


def _has_default_service_account(cluster: Layout, binaries: Path) -> bool:
    return succeeds(controlplane.kubectl(cluster, binaries, "get", "serviceaccount", "default"))


def _lock(name: str) -> Path:
    return state_root() / "locks" / f"cluster-{name}"
