"""A node: containerd, kubelet and kube-proxy in a network and a mount namespace of their own."""

import shutil
from pathlib import Path
from string import Template

from e2e.cluster import cgroups, daemons
from e2e.cluster.commands import Progress, run, succeeds, wait_until
from e2e.cluster.layout import Node
from e2e.cluster.paths import HERE, write_atomically

HOLDER, CONTAINERD, KUBELET, PROXY = "holder", "containerd", "kubelet", "kube-proxy"
PARTS = (HOLDER, CONTAINERD, KUBELET, PROXY)


def part(node: Node, name: str) -> str:
    """Name of a node's daemon, such as node1-kubelet."""
    return f"{node.name}-{name}"


def start_containerd(node: Node, binaries: Path, pki: Path, progress: Progress) -> None:
    """Make the node's namespaces and start its containerd, if they do not run; return when it answers."""
    _write_configuration(node, binaries, pki)
    cgroups.make_everywhere(node.cgroup)
    if daemons.running(node.cluster, part(node, HOLDER)) is None:
        _start_holder(node)
    wait_until(f"{node.name} to have its mounts", (node.folder / "run/holder-ready").exists, 10, 0.02)
    command = inside(node, [binaries / "containerd", "-c", node.folder / "containerd.toml"])
    daemons.start(node.cluster, part(node, CONTAINERD), command)
    try:
        _wait_for_containerd(node, binaries)
    except TimeoutError:
        progress(f"{node.name}: containerd does not come up with its kept images, starting it without")
        daemons.stop(node.cluster, part(node, CONTAINERD))
        _empty(node.images)
        daemons.start(node.cluster, part(node, CONTAINERD), command)
        _wait_for_containerd(node, binaries)


def start_kubelet(node: Node, binaries: Path, pki: Path) -> None:
    """Start the node's kubelet and kube-proxy, if they do not run."""
    kubelet = [
        f"--kubeconfig={pki}/{node.name}.conf",
        f"--config={node.folder}/kubelet.yaml",
        "--cert-dir=/var/lib/kubelet/pki",
        f"--hostname-override={node.name}",
        f"--node-ip={node.address}",
        "--v=2",
    ]
    daemons.start(node.cluster, part(node, KUBELET), inside(node, [binaries / "kubelet", *kubelet]))
    proxy = inside(node, [binaries / "kube-proxy", f"--config={node.folder}/kube-proxy.yaml"])
    daemons.start(node.cluster, part(node, PROXY), proxy)


def inside(node: Node, command: list[str | Path]) -> list[str | Path]:
    """The command line that runs a command in the node's namespaces.

    Raises RuntimeError when the node does not run.
    """
    holder = daemons.running(node.cluster, part(node, HOLDER))
    if holder is None:
        raise RuntimeError(f"{node.name} of cluster {node.cluster.name} does not run; `up` repairs it")
    # Not `ip netns exec`: it mounts /sys anew, and the cgroups are not in there.
    return ["nsenter", f"--target={holder}", "--mount", "--net", *command]


def ctr(node: Node, binaries: Path, *arguments: str) -> list[str | Path]:
    """The command line of containerd's client for the images and containers of the kubelet."""
    return inside(node, [binaries / "ctr", "--namespace", "k8s.io", *arguments])


def _start_holder(node: Node) -> None:
    # Without its holder nothing of a node can be kept: begin as a machine does that was switched off.
    names = [part(node, name) for name in PARTS]
    cgroups.kill_members([node.cgroup, *(f"{node.cluster.cgroup}/{name}" for name in names)])
    for folder in ("run", "var"):
        _empty(node.folder / folder)
    for folder in ("lib/containerd", "lib/kubelet/volume-plugins", "lib/gpulet", "log", "tmp"):
        (node.folder / "var" / folder).mkdir(parents=True)
    (node.folder / "var/tmp").chmod(0o1777)
    (node.folder / "var/run").symlink_to("/run")
    node.images.mkdir(parents=True, exist_ok=True)
    enter: list[str | Path] = [
        "nsenter",
        f"--net=/run/netns/{node.netns}",
        "unshare",
        "--mount",
        "--propagation",
        "private",
    ]
    holder: list[str | Path] = ["sh", HERE / "templates/holder.sh", node.folder, node.images]
    daemons.start(node.cluster, part(node, HOLDER), [*enter, *holder])


def _wait_for_containerd(node: Node, binaries: Path) -> None:
    def answers() -> bool:
        return succeeds(ctr(node, binaries, "images", "list", "-q"))

    wait_until(f"containerd of {node.name} to answer", answers, 20, 0.1)


def _write_configuration(node: Node, binaries: Path, pki: Path) -> None:
    values = {
        "name": node.name,
        "folder": str(node.folder),
        "binaries": str(binaries),
        "pki": str(pki),
        "cgroup": node.cgroup,
        "pod_range": node.pod_range,
        "cluster_pod_range": node.cluster.pod_range,
        "runc": shutil.which("runc") or "",
    }
    targets = {name: name for name in ("containerd.toml", "kubelet.yaml", "kube-proxy.yaml", "resolv.conf")}
    for template, target in {**targets, "cni.conflist": "cni/10-gpulet.conflist"}.items():
        text = (HERE / "templates" / template).read_text()
        write_atomically(node.folder / target, Template(text).substitute(values))


def _empty(folder: Path) -> None:
    if folder.exists():
        run(["rm", "-rf", "--one-file-system", folder])
    folder.mkdir(parents=True)
