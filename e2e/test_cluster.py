"""The local cluster itself: what it promises to tests and to the machine it runs on."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import oci
from e2e.cluster.binaries import ensure_binaries
from e2e.cluster.commands import kubectl, run, wait_until
from e2e.cluster.images import build, load_into
from e2e.cluster.layout import find
from e2e.cluster.paths import REPOSITORY, cache_root, state_root

pytestmark = pytest.mark.timeout(600)
NAME = "cluster-test"
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


def verb(*words: str, name: str = NAME) -> str:
    """Run a verb as a user does and return what it prints."""
    return run([sys.executable, "-m", "e2e.cluster", words[0], "--name", name, *words[1:]], cwd=REPOSITORY)


@dataclass(frozen=True)
class Running:
    """The cluster under test, as its own `status` describes it."""

    name: str

    @property
    def status(self) -> dict[str, Any]:
        return dict(json.loads(verb("status", "-o", "json", name=self.name)))

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        return run([kubectl(), "--kubeconfig", self.status["kubeconfig"], *words], stdin=stdin)

    def apply(self, *objects: dict[str, Any]) -> None:
        self.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def wait_ready(self, pod: str) -> None:
        self.kubectl("wait", "--for=condition=Ready", f"pod/{pod}", "-n", "probing", "--timeout=60s")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Running]:
    """A cluster with the namespace "probing" under Pod Security restricted, and the probe's image."""
    verb("down")
    verb("up")
    verb("load", "probe")
    running = Running(NAME)
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    running.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "probing", "labels": labels}})
    yield running
    verb("down")


def pod(name: str, node: str, *arguments: str, image: str = "probe", **spec: Any) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": f"localhost/gpulet-{image}:dev",
        "imagePullPolicy": "IfNotPresent",
        "args": list(arguments),
        "securityContext": RESTRICTED,
        **({"volumeMounts": [{"name": "data", "mountPath": "/data"}]} if "volumes" in spec else {}),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "probing", "labels": {"app": name}},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
            **spec,
        },
    }


def service(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "probing"},
        "spec": {"selector": {"app": name}, "ports": [{"port": 80, "targetPort": 8080}]},
    }


def test_up_twice_changes_nothing(cluster: Running) -> None:
    before = cluster.status
    assert before["complete"]
    verb("up")
    assert cluster.status == before


def test_a_service_is_reached_from_the_other_node_and_from_the_machine(cluster: Running) -> None:
    cluster.apply(pod("web", "node1", "serve", ":8080"), pod("visitor", "node2", "serve", ":8080"), service("web"))
    for name in ("web", "visitor"):
        cluster.wait_ready(name)
    address = cluster.kubectl("get", "service", "web", "-n", "probing", "-o", "jsonpath={.spec.clusterIP}")

    def from_the_other_node() -> str:
        return cluster.kubectl("exec", "-n", "probing", "visitor", "--", "/probe", "get", f"http://{address}")

    def from_the_machine() -> str:
        with urllib.request.urlopen(f"http://{address}", timeout=5) as answer:
            return str(answer.read().decode())

    assert from_the_other_node() == "web"
    assert from_the_machine() == "web"


def test_both_nodes_share_a_volume_and_its_claim_can_be_made_again(cluster: Running) -> None:
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "namespace": "probing"},
        "spec": {
            "storageClassName": "gpulet-shared",
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    users = [pod(f"user-{node}", node, "serve", ":8080", volumes=volumes) for node in ("node1", "node2")]
    cluster.apply(claim, *users)
    for user in users:
        cluster.wait_ready(user["metadata"]["name"])
    cluster.kubectl("exec", "-n", "probing", "user-node1", "--", "/probe", "write", "/data/note", "from node1")
    assert cluster.kubectl("exec", "-n", "probing", "user-node2", "--", "/probe", "read", "/data/note") == "from node1"
    volume = cluster.kubectl("get", "pvc", "data", "-n", "probing", "-o", "jsonpath={.spec.volumeName}")
    cluster.kubectl("delete", "-n", "probing", "pod/user-node1", "pod/user-node2", "pvc/data")
    verb("up")
    phase = cluster.kubectl("get", "pv", volume, "-o", "jsonpath={.status.phase}")
    assert phase in ("Available", "")  # made anew; the controller may not have looked at it yet
    assert not (Path(cluster.status["sharedVolumes"]) / volume / "note").exists()


def test_the_operators_image_runs_under_pod_security_restricted(cluster: Running) -> None:
    verb("load", "operator")
    asking = pod("operator", "node2", "--help", image="operator", restartPolicy="Never")
    cluster.apply(asking)
    done = "--for=jsonpath={.status.phase}=Succeeded"
    cluster.kubectl("wait", done, "pod/operator", "-n", "probing", "--timeout=60s")
    assert "Usage" in cluster.kubectl("logs", "-n", "probing", "operator")


def test_an_image_that_was_not_changed_is_neither_built_nor_imported_again(cluster: Running) -> None:
    verb("load", "operator")
    layout = find(NAME)
    assert layout
    assert load_into(list(layout.nodes), [build("operator", lambda line: pytest.fail(line))], ensure_binaries()) == []


def test_a_build_leaves_no_mount_behind() -> None:
    (cache_root() / "images" / "operator.json").unlink(missing_ok=True)
    build("operator", print)
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    assert [line for line in mounts if str(cache_root() / "buildah") in line] == []


def test_a_changed_image_replaces_the_old_one_on_the_nodes(cluster: Running, tmp_path: Path) -> None:
    layout, binaries = find(NAME), ensure_binaries()
    assert layout
    name, version, program = "localhost/gpulet-changing:dev", tmp_path / "version", {"/probe": binaries / "probe"}
    for text in ("first", "second"):
        version.write_text(text)
        image = oci.write_image(tmp_path / text, name, {**program, "/version": version}, ["/probe"])
        assert len(load_into(list(layout.nodes), [image], binaries)) == 2
        reading = pod(f"reads-{text}", "node1", "read", "/version", image="changing", restartPolicy="Never")
        cluster.apply(reading)
        done = "--for=jsonpath={.status.phase}=Succeeded"
        cluster.kubectl("wait", done, f"pod/reads-{text}", "-n", "probing", "--timeout=30s")
        assert cluster.kubectl("logs", "-n", "probing", f"reads-{text}") == text


def test_every_request_is_in_the_audit_log(cluster: Running) -> None:
    cluster.kubectl("create", "configmap", "audited", "-n", "probing")
    lines = Path(cluster.status["auditLog"]).read_text().splitlines()
    events = [json.loads(line) for line in lines if '"audited"' in line]
    assert [(event["verb"], event["user"]["username"]) for event in events] == [("create", "admin")]


def test_a_restarted_kubelet_and_containerd_leave_their_pods_alone(cluster: Running) -> None:
    cluster.apply(pod("survivor", "node1", "serve", ":8080"))
    cluster.wait_ready("survivor")

    def container() -> str:
        path = "jsonpath={.status.containerStatuses[0].containerID}"
        return cluster.kubectl("get", "pod", "survivor", "-n", "probing", "-o", path)

    before, old = container(), cluster.status["processes"]
    verb("restart", "node1-containerd")
    verb("restart", "node1-kubelet")
    cluster.wait_ready("survivor")
    new = cluster.status["processes"]
    assert container() == before
    assert {name for name in old if old[name] != new[name]} == {"node1-containerd", "node1-kubelet"}


@pytest.mark.parametrize("daemon", ["kube-scheduler", "kube-apiserver", "node1-holder"])
def test_up_repairs_what_was_killed(cluster: Running, daemon: str) -> None:
    os.kill(cluster.status["processes"][daemon], signal.SIGKILL)
    wait_until(f"{daemon} to be gone", lambda: cluster.status["processes"][daemon] is None, 5)
    assert not cluster.status["complete"]
    verb("up")
    assert cluster.status["complete"]
    cluster.kubectl("delete", "pod", "after-repair", "-n", "probing", "--ignore-not-found", "--wait")
    cluster.apply(pod("after-repair", "node1", "serve", ":8080"))
    cluster.wait_ready("after-repair")


def test_a_second_cluster_beside_the_first_leaves_it_alone(cluster: Running) -> None:
    cluster.apply(pod("neighbour", "node1", "serve", ":8080"), service("neighbour"))
    cluster.wait_ready("neighbour")
    before = cluster.status
    other = Running("cluster-test-2")
    try:
        verb("up", name=other.name)
        assert other.status["server"] != before["server"]
        assert other.kubectl("get", "pods", "-A", "-o", "name") == ""
    finally:
        verb("down", name=other.name)
    assert cluster.status == before
    address = cluster.kubectl("get", "service", "neighbour", "-n", "probing", "-o", "jsonpath={.spec.clusterIP}")
    with urllib.request.urlopen(f"http://{address}", timeout=5) as answer:
        assert answer.read() == b"neighbour"


@pytest.mark.parametrize("after_s", [0.6, 1.5, 3.0, 6.0])
def test_up_completes_what_a_killed_up_began(after_s: float) -> None:
    name = "cluster-test-killed"
    verb("down", name=name)
    try:
        _kill_up(name, after_s)
        verb("up", name=name)
        assert Running(name).status["complete"]
    finally:
        verb("down", name=name)


@pytest.mark.parametrize("killed_after_s", [None, 1.0, 4.0])
def test_down_leaves_nothing(killed_after_s: float | None) -> None:
    name = "cluster-test-gone"
    verb("down", name=name)
    before = Machine.look()
    if killed_after_s is None:
        verb("up", name=name)
    else:
        _kill_up(name, killed_after_s)
    layout = find(name)
    assert layout, "the start was killed before it had begun"
    verb("down", name=name)
    after = Machine.look()
    assert after.beyond(before, layout.slot) == set(), "left behind"
    assert before.beyond(after, layout.slot) == set(), "taken away"
    assert not (state_root() / name).exists()
    assert _processes_that_mention(str(layout.folder)) == []


def test_where_docker_drops_forwarding_the_bridge_gets_a_rule_and_loses_it() -> None:
    """In a network namespace of its own: the machine's firewall is not ours to change for a test."""
    steps = """
from e2e.cluster import network
from e2e.cluster.commands import run
from e2e.cluster.layout import Layout
cluster = Layout("firewalled", 9)
for step in (network.ensure_network, network.ensure_network, network.remove_network, network.remove_network):
    step(cluster)
    print(run(["iptables", "-S", "FORWARD"]).count("-i gplbr9 -o gplbr9"), run(["ip", "-br", "link"]).count("gpl9"))
"""
    inside = 'mount -t sysfs none /sys && mount -t tmpfs none /run/netns && iptables -P FORWARD DROP && exec "$@"'
    Path("/run/netns").mkdir(exist_ok=True)
    command = ["unshare", "--net", "--mount", "sh", "-c", inside, "sh", sys.executable, "-c", steps]
    assert run(command, cwd=REPOSITORY).split("\n") == ["1 2", "1 2", "0 0", "0 0", ""]


def test_down_of_no_cluster_is_no_error() -> None:
    verb("down", name="cluster-test-never-made")


def _kill_up(name: str, after_s: float) -> None:
    starting = subprocess.Popen([sys.executable, "-m", "e2e.cluster", "up", "--name", name], cwd=REPOSITORY)
    time.sleep(after_s)
    starting.kill()
    starting.wait()


def _processes_that_mention(text: str) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in words:
            found.append(words)
    return found


@dataclass(frozen=True)
class Machine:
    """What a cluster could leave behind on a machine, line by line."""

    lines: frozenset[str]

    @classmethod
    def look(cls) -> "Machine":
        lines = run(["ip", "-o", "link"]).splitlines()
        lines = [line.split(": ")[1] for line in lines]
        for command in (["ip", "netns", "list"], ["ip", "route", "show", "table", "all"], ["iptables-save"]):
            lines += [line for line in run(command).splitlines() if not line.startswith("#")]
        lines += Path("/proc/self/mounts").read_text().splitlines()
        cgroups = [str(path) for path in Path("/sys/fs/cgroup").rglob("*") if path.is_dir()]
        changed = ("vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys")
        sysctls = [f"{name} = {(Path('/proc/sys') / name).read_text()}" for name in changed]
        folders = [str(path) for folder in ("/run", "/var/lib", "/var/log", "/etc") for path in Path(folder).iterdir()]
        return cls(frozenset([*lines, *cgroups, *sysctls, *folders]))

    def beyond(self, other: "Machine", slot: int) -> set[str]:
        """What is here and not there, but for what others start and stop meanwhile: other slots' clusters, builds."""
        return {line for line in self.lines - other.lines if not _is_foreign(line, slot)}


def _is_foreign(line: str, slot: int) -> bool:
    slots = [int(number) for number in re.findall(r"(?:gplbr|gpl|gpulet|10\.96\.|10\.99\.)(\d)(?!\d)", line)]
    pods = [int(number) // 16 for number in re.findall(r"10\.244\.(\d+)\.", line)]
    return any(number != slot for number in slots + pods)
