"""What a cluster's name and slot imply: every address, port and name, so that clusters never meet."""

import json
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.paths import cache_root, locked, state_root, write_atomically

SLOTS = range(10)
NODE_NUMBERS = (1, 2)
RECORD = "cluster.json"


@dataclass(frozen=True)
class Node:
    """One node: a network namespace and a mount namespace with folders of its own."""

    cluster: "Layout"
    number: int

    @property
    def name(self) -> str:
        return f"node{self.number}"

    @property
    def netns(self) -> str:
        return f"gpl{self.cluster.slot}-node{self.number}"

    @property
    def veth(self) -> str:
        return f"gpl{self.cluster.slot}v{self.number}"

    @property
    def address(self) -> str:
        return f"10.99.{self.cluster.slot}.1{self.number}"

    @property
    def pod_range(self) -> str:
        return f"10.244.{16 * self.cluster.slot + self.number - 1}.0/24"

    @property
    def cgroup(self) -> str:
        """Name of the cgroup, in every hierarchy, below which the kubelet keeps the pods."""
        return f"gpulet{self.cluster.slot}-node{self.number}"

    @property
    def folder(self) -> Path:
        """On the machine; ``var`` and ``run`` below it are what the node sees as /var and /run."""
        return self.cluster.folder / self.name

    @property
    def images(self) -> Path:
        """The node's /var/lib/containerd, kept between runs so that an unchanged image is not imported again."""
        return cache_root() / "containerd" / f"slot{self.cluster.slot}" / self.name


@dataclass(frozen=True)
class Layout:
    """A cluster: its name and the slot (0-9) from which all else derives."""

    name: str
    slot: int

    @property
    def folder(self) -> Path:
        return state_root() / self.name

    @property
    def shared(self) -> Path:
        """Folder of the shared volumes; at the same path on the machine and on every node."""
        return self.folder / "shared"

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    @property
    def audit_log(self) -> Path:
        return self.folder / "audit.log"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def bridge(self) -> str:
        return f"gplbr{self.slot}"

    @property
    def host_address(self) -> str:
        return f"10.99.{self.slot}.1"

    @property
    def pod_range(self) -> str:
        return f"10.244.{16 * self.slot}.0/20"

    @property
    def service_range(self) -> str:
        return f"10.96.{self.slot}.0/24"

    @property
    def service_address(self) -> str:
        """ClusterIP of the API server (always the first of the range)."""
        return f"10.96.{self.slot}.1"

    @property
    def server(self) -> str:
        return f"https://{self.host_address}:6443"

    @property
    def etcd_client(self) -> str:
        return f"http://127.0.0.1:{2379 + 10 * self.slot}"

    @property
    def etcd_peer(self) -> str:
        return f"http://127.0.0.1:{2380 + 10 * self.slot}"

    @property
    def cgroup(self) -> str:
        """Name of the cgroup that holds the cluster's own processes, one cgroup below it for each."""
        return f"gpulet{self.slot}"

    @property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(Node(self, number) for number in NODE_NUMBERS)


def find(name: str) -> Layout | None:
    """The cluster of that name, if one was begun and not taken down since."""
    record = state_root() / name / RECORD
    return Layout(name, json.loads(record.read_text())["slot"]) if record.exists() else None


def all_clusters() -> list[Layout]:
    """Every cluster that was begun and not taken down since."""
    names = sorted(record.parent.name for record in state_root().glob(f"*/{RECORD}"))
    return [found for name in names if (found := find(name))]


def claim(name: str) -> Layout:
    """The cluster of that name, with a slot taken for it if it has none.

    Raises SystemExit when every slot is taken. A slot whose bridge exists without a record of ours is left alone:
    somebody else made it.
    """
    with locked(state_root() / "locks/slots"):
        if existing := find(name):
            return existing
        taken = {cluster.slot for cluster in all_clusters()}
        for slot in SLOTS:
            cluster = Layout(name, slot)
            if slot not in taken and not Path("/sys/class/net", cluster.bridge).exists():
                write_atomically(cluster.folder / RECORD, json.dumps({"slot": slot}))
                return cluster
    raise SystemExit(f"all {len(SLOTS)} cluster slots are taken; take one down: python -m e2e.cluster down --name NAME")
