"""The node part on a real API server, scheduler, kubelet and containerd, with simulated GPUs."""

import base64
import json
import os
import signal
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from e2e.cluster import local
from e2e.cluster.commands import say
from e2e.node_part import NAMESPACE, NodePart, Tenant, eventually

pytestmark = pytest.mark.timeout(240)

AGENT_USER = f"system:serviceaccount:{NAMESPACE}:gpulet-agent"


@pytest.fixture(scope="module")
def part() -> Iterator[NodePart]:
    name = os.environ.get("GPULET_E2E_NAME", "node")
    yield NodePart.install(name)
    if not os.environ.get("GPULET_E2E_KEEP"):
        local.down(name, say)


@pytest.fixture
def tenant(part: NodePart, request: pytest.FixtureRequest) -> Iterator[Tenant]:
    """A namespace of the test's own; afterwards nothing of it may be left on the nodes."""
    namespace = request.node.name.removeprefix("test_").replace("_", "-")[:50].rstrip("-")
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    part.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}})
    yield Tenant(part, namespace)
    # First: a namespace that is not empty yet is looked at again only seconds later.
    part.kubectl("-n", namespace, "delete", "pods,resourceclaims", "--all", "--wait=true")
    part.kubectl("delete", "namespace", namespace, "--wait=true")
    for of in part.cluster.nodes:
        eventually(lambda of=of: part.leftovers(of.name) == [], f"{of.name} to hold nothing")  # type: ignore[misc]


def test_what_is_published(part: NodePart) -> None:
    """Ampere as its mode allows, Hopper whole and cut; every device carries every attribute."""
    devices = [d for s in part.slices("node1") for d in s["spec"].get("devices", ())]
    assert len([d for d in devices if d["name"] == "gpu-0"]) == 1
    names = {d["name"] for d in devices}
    assert {"gpu-1", "gpu-1-mig-3g-40gb-4", "gpu-1-mig-1g-10gb-6"} < names
    assert not any(name.startswith("gpu-0-mig") for name in names)
    assert len(names) == len(devices) == 1 + 19
    assert len({frozenset(d["attributes"]) for d in devices}) == 1


def _pid(tenant: Tenant, name: str) -> int:
    """Of the client's process, on the machine."""
    (status,) = tenant.pod(name)["status"]["containerStatuses"]
    container = status["containerID"].removeprefix("containerd://")
    return min(int(p.name) for p in Path("/proc").glob("[1-9]*") if _in_container(p, container))


def _shm(pid: int) -> int:
    return Path(f"/proc/{pid}/root/dev/shm").stat().st_dev


def test_two_shares_run_together_and_a_third_waits_until_one_goes(tenant: Tenant) -> None:
    tenant.share("forty", percent=40)
    tenant.share("fifty", percent=50, user=1001)
    for name in ("forty", "fifty"):
        tenant.wait_running(name)
        tenant.wait_enforced(name, "True", "CPUQuota")
        assert tenant.conditions(name)["Ready"] == ("True", "Prepared")
    part = tenant.part
    assert len(part.daemons("node1")) == 1, "one daemon for one device"
    seen = [_shm(pid) for pid in (*part.daemons("node1").values(), _pid(tenant, "forty"), _pid(tenant, "fifty"))]
    assert len(set(seen)) == 1, "daemon and clients share one /dev/shm"
    tenant.share("twenty", percent=20, user=1000)
    assert "cannot allocate all claims" in tenant.unschedulable("twenty")
    tenant.delete("forty")
    tenant.wait_running("twenty")
    tenant.wait_enforced("twenty", "True", "CPUQuota")


@pytest.mark.case("D11")
def test_a_claim_for_more_than_the_device_has_stays_pending(tenant: Tenant) -> None:
    """Case D11: 81920 MiB is all, one more is too much."""
    tenant.share("over", memory="81921Mi")
    assert "cannot allocate all claims" in tenant.unschedulable("over")
    tenant.share("all", memory="81920Mi", percent=100)
    tenant.wait_running("all")
    assert tenant.environment("all")["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=81920M"


@pytest.mark.case("K5", "B11")
def test_a_pod_cannot_raise_its_share_by_its_own_variables(tenant: Tenant) -> None:
    """Cases K5, B11: CDI wins over the pod's spec."""
    own = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=80G"}
    tenant.share("greedy", percent=40, memory="10Gi", environment=own)
    tenant.wait_running("greedy")
    seen = tenant.environment("greedy")
    assert seen["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "40"
    assert seen["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=10240M"
    tenant.wait_enforced("greedy", "True", "CPUQuota")


@pytest.mark.case("B11", "D15")
def test_enforced_says_when_nothing_holds_the_share(tenant: Tenant) -> None:
    """Cases B11, D15: without a CPU limit a share of a simulated GPU is a number in the books."""
    tenant.share("unlimited", cpu=None)
    tenant.share("generous", cpu="200m")
    for name in ("unlimited", "generous"):
        tenant.wait_running(name)
        tenant.wait_enforced(name, "False", "AccountingOnly")


@pytest.mark.case("P1")
def test_mig_placements_exclude_what_overlaps_them(tenant: Tenant) -> None:
    """Case P1, and shares inside one instance."""
    tenant.share("upper", gpu=1, mig=("3g.40gb", 4), percent=60)
    tenant.share("upper-too", gpu=1, mig=("3g.40gb", 4), percent=40)
    tenant.share("lower", gpu=1, mig=("4g.40gb", 0), percent=100)
    for name in ("upper", "upper-too", "lower"):
        tenant.wait_running(name)
        tenant.wait_enforced(name, "True", "CPUQuota")
    devices = {n: tenant.environment(n)["GPULET_DEVICE_UUID"] for n in ("upper", "upper-too", "lower")}
    assert devices["upper"] == devices["upper-too"] != devices["lower"]
    assert all(uuid.startswith("MIG-") for uuid in devices.values())
    for name, mig in (("inside", ("2g.20gb", 4)), ("whole", None)):
        tenant.share(name, gpu=1, mig=mig)
        tenant.unschedulable(name)
    tenant.delete("upper")
    tenant.delete("upper-too")
    tenant.wait_running("inside")


@pytest.mark.case("F10", "L5")
def test_rollout_of_the_agent_touches_no_daemon_and_no_slice(tenant: Tenant) -> None:
    """Cases F10, L5; and new shares are served throughout."""
    part = tenant.part
    tenant.share("steady")
    tenant.wait_enforced("steady", "True", "CPUQuota")
    daemons, started = part.daemons("node1"), tenant.pod("steady")["status"]["containerStatuses"][0]["containerID"]
    slices = {s["metadata"]["uid"]: s["metadata"]["resourceVersion"] for s in part.slices()}
    before = part.agent_pod("node1")["metadata"]["uid"]
    part.kubectl("-n", NAMESPACE, "rollout", "restart", "daemonset/gpulet-agent")
    tenant.share("meanwhile", percent=20)
    part.kubectl("-n", NAMESPACE, "rollout", "status", "daemonset/gpulet-agent", "--timeout=120s")
    tenant.wait_running("meanwhile")
    eventually(lambda: len(part.all("pods", "-n", NAMESPACE)) == 4, "the old agents to go")
    assert part.agent_pod("node1")["metadata"]["uid"] != before
    assert part.daemons("node1") == daemons
    assert tenant.pod("steady")["status"]["containerStatuses"][0]["containerID"] == started
    assert {s["metadata"]["uid"]: s["metadata"]["resourceVersion"] for s in part.slices()} == slices
    tenant.wait_enforced("meanwhile", "True", "CPUQuota")


def test_slices_come_back_after_a_kubelet_restart_and_pods_run_on(tenant: Tenant) -> None:
    part = tenant.part
    tenant.share("steady")
    tenant.wait_enforced("steady", "True", "CPUQuota")
    daemons, before = part.daemons("node1"), {s["metadata"]["uid"] for s in part.slices("node1")}
    part.restart("node1-kubelet")

    def renewed() -> bool:
        now = {s["metadata"]["uid"] for s in part.slices("node1")}
        return len(now) == 4 and not now & before

    eventually(renewed, "the slices to be published anew", 90)
    assert part.daemons("node1") == daemons
    assert tenant.pod("steady")["status"]["containerStatuses"][0]["restartCount"] == 0
    tenant.share("next", percent=20)
    tenant.wait_running("next")


def test_slices_that_somebody_deletes_or_edits_are_put_right(part: NodePart) -> None:
    (first, *_), untouched = part.slices("node1"), part.slices("node2")
    part.kubectl("delete", "resourceslice", first["metadata"]["name"])
    eventually(lambda: len(part.slices("node1")) == 4, "the slice")
    pools = {s["spec"]["pool"]["name"]: set() for s in part.slices("node1")}  # type: ignore[var-annotated]
    for found in part.slices("node1"):
        pools[found["spec"]["pool"]["name"]].add(found["spec"]["pool"]["generation"])
    assert all(len(generations) == 1 for generations in pools.values()), "a pool is of one generation"
    versions = {s["metadata"]["name"]: s["metadata"]["resourceVersion"] for s in part.slices("node2")}
    assert versions == {s["metadata"]["name"]: s["metadata"]["resourceVersion"] for s in untouched}


@pytest.mark.case("F5", "F9", "F11", "D14")
def test_a_killed_agent_finds_everything_again(tenant: Tenant) -> None:
    """Cases F5, F9, F11, D14."""
    part = tenant.part
    tenant.share("steady")
    tenant.wait_enforced("steady", "True", "CPUQuota")
    daemons = part.daemons("node1")
    pod = part.agent_pod("node1")
    container = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
    pids = [int(p.name) for p in Path("/proc").glob("[1-9]*") if _in_container(p, container)]
    os.kill(min(pids), signal.SIGKILL)

    def is_back() -> bool:
        (status,) = part.agent_pod("node1")["status"]["containerStatuses"]
        return bool(status["restartCount"] and status["ready"])

    # A prepare that falls into the gap is tried again by the kubelet after 87 s only.
    eventually(is_back, "the agent to be registered again")
    tenant.share("next", percent=20)
    tenant.wait_running("next")
    tenant.wait_enforced("next", "True", "CPUQuota")
    assert part.daemons("node1") == daemons


def _in_container(process: Path, container: str) -> bool:
    try:
        return container in (process / "cgroup").read_text()
    except OSError:
        return False


@pytest.mark.case("A22", "F13")
def test_a_daemon_that_dies_takes_its_clients_and_both_come_back(tenant: Tenant) -> None:
    """Cases A22, F13: one fault domain; Ready and Enforced tell it and recover."""
    part = tenant.part
    tenant.share("first")
    tenant.share("second", percent=30)
    for name in ("first", "second"):
        tenant.wait_enforced(name, "True", "CPUQuota")
    before = part.daemons("node1")
    since = datetime.now().astimezone().replace(microsecond=0)
    os.kill(next(iter(before.values())), signal.SIGKILL)

    def told(name: str) -> bool:
        devices = part.get("resourceclaim", name, tenant.namespace)["status"]["devices"]
        times = [datetime.fromisoformat(c["lastTransitionTime"]) for d in devices for c in d["conditions"]]
        return len(times) == 2 and min(times) >= since

    for name in ("first", "second"):
        eventually(lambda name=name: told(name), f"{name}'s conditions to tell of the restart")  # type: ignore[misc]
        eventually(
            lambda name=name: tenant.pod(name)["status"]["containerStatuses"][0]["restartCount"] >= 1,  # type: ignore[misc]
            f"{name}'s process to be started again",
        )
        tenant.wait_enforced(name, "True", "CPUQuota")
    assert part.daemons("node1").keys() == before.keys()
    assert part.daemons("node1") != before


@pytest.mark.case("A23")
def test_a_client_is_terminated_before_its_grace_period_ends(tenant: Tenant) -> None:
    """Case A23: a client that does not heed SIGTERM is ended through the daemon, not killed under its work."""
    tenant.share("deaf", grace_s=8)
    tenant.wait_enforced("deaf", "True", "CPUQuota")
    agent = tenant.part.agent_pod("node1")["metadata"]["name"]
    uid = tenant.pod("deaf")["metadata"]["uid"]
    tenant.delete("deaf")
    log = tenant.part.kubectl("-n", NAMESPACE, "logs", agent)
    assert f"of pod {uid}: terminated before its grace ends: True" in log


@pytest.mark.case("N1", "N2")
def test_a_lost_gpu_is_emptied_alone_and_taken_back_after_it_was_healthy_for_a_while(tenant: Tenant) -> None:
    """Cases N1, N2: NoExecute on that GPU's devices, its neighbour untouched; the taint goes by itself."""
    part = tenant.part
    lost = part.uuid("node1", 0)
    tenant.share("on-lost")
    tenant.share("beside", gpu=1)
    for name in ("on-lost", "beside"):
        tenant.wait_enforced(name, "True", "CPUQuota")
    faults = part.node("node1").folder / "var/lib/gpulet/faults.json"

    def tainted() -> set[str]:
        devices = [d for s in part.slices("node1") for d in s["spec"].get("devices", ())]
        return {d["attributes"]["uuid"]["string"] for d in devices if d.get("taints")}

    faults.write_text(json.dumps({"health": {lost: "lost"}}))
    try:
        eventually(lambda: tainted() == {lost}, "the taint")
        gone = ["-n", tenant.namespace, "--field-selector", "metadata.name=on-lost"]
        eventually(lambda: not part.all("pods", *gone), "the pod on the lost GPU to be evicted")
        assert tenant.pod("beside")["status"]["containerStatuses"][0]["restartCount"] == 0
    finally:
        faults.unlink()
    recovered = time.monotonic()
    eventually(lambda: not tainted(), "the taint to go")
    assert time.monotonic() - recovered > 4
    tenant.share("again", percent=30)
    tenant.wait_running("again")


def test_a_pods_status_tells_its_devices_health(tenant: Tenant) -> None:
    """KEP 4680: the kubelet hears of it from the agent."""
    tenant.share("told")
    tenant.wait_running("told")

    def health() -> set[str]:
        (status,) = tenant.pod("told")["status"]["containerStatuses"]
        return {r["health"] for of in status.get("allocatedResourcesStatus", ()) for r in of["resources"]}

    eventually(lambda: health() == {"Healthy"}, "the device's health in the pod's status", 90)


@pytest.mark.case("A9", "C15")
def test_another_owner_of_the_gpus_is_stepped_back_from(tenant: Tenant) -> None:
    """Cases A9, C15: taint, attribute and event say who; what runs stays; when the owner goes, so does the taint."""
    part = tenant.part
    tenant.share("before")
    tenant.wait_enforced("before", "True", "CPUQuota")

    def owners() -> set[str]:
        devices = [d for s in part.slices("node1") for d in s["spec"].get("devices", ())]
        taints = {t["value"] for d in devices for t in d.get("taints", ()) if t["key"] == "gpulet.dev/withdrawn"}
        assert taints | {""} == {d["attributes"]["withdrawn"]["string"] for d in devices} | {""}
        return taints

    handshake = "hami.io/node-handshake"
    part.kubectl("annotate", "node", "node1", f"{handshake}=Reported")
    try:
        eventually(lambda: owners() == {"HAMi"}, "the GPUs to be withdrawn", 90)
        tenant.share("after", percent=20)
        tenant.unschedulable("after")
        assert tenant.pod("before")["status"]["containerStatuses"][0]["restartCount"] == 0
        events = part.all("events.events.k8s.io", "-n", "default", "--field-selector", "reason=HAMi")
        assert events and all("is withdrawn" in e["note"] for e in events)
    finally:
        part.kubectl("annotate", "node", "node1", f"{handshake}-")
    eventually(lambda: owners() == set(), "the GPUs to come back", 90)
    tenant.wait_running("after")


@pytest.mark.case("M5")
def test_nothing_is_written_while_nothing_changes(tenant: Tenant) -> None:
    """Case M5."""
    tenant.share("steady")
    tenant.wait_enforced("steady", "True", "CPUQuota")
    time.sleep(2)
    audit = tenant.part.cluster.audit_log
    start = audit.stat().st_size
    time.sleep(12)
    with audit.open() as file:
        file.seek(start)
        events = [json.loads(line) for line in file if line.strip()]
    writes = [
        (e["verb"], e["requestURI"])
        for e in events
        if e["user"]["username"] == AGENT_USER and e["verb"] in ("create", "update", "patch", "delete")
    ]
    assert writes == []


def test_agents_may_write_slices_of_their_own_node_alone(part: NodePart) -> None:
    agent = part.agent_pod("node1")["metadata"]["name"]
    bound = ["--bound-object-kind=Pod", f"--bound-object-name={agent}"]
    token = part.kubectl("-n", NAMESPACE, "create", "token", "gpulet-agent", *bound).strip()
    payload = token.split(".")[1]
    assert json.loads(base64.urlsafe_b64decode(payload + "=="))["sub"] == AGENT_USER
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "agent",
        "contexts": [{"name": "agent", "context": {"cluster": "c", "user": "agent"}}],
        "clusters": [{"name": "c", "cluster": {"server": part.cluster.server, "insecure-skip-tls-verify": True}}],
        "users": [{"name": "agent", "user": {"token": token}}],
    }
    path = part.cluster.folder / "agent.kubeconfig"
    path.write_text(json.dumps(config))
    (foreign, *_), (own, *_) = part.slices("node2"), part.slices("node1")
    as_agent = {"KUBECONFIG": str(path)}
    said = part.kubectl("delete", "resourceslice", foreign["metadata"]["name"], check=False, **as_agent)
    assert "the agent of node node1 may not write slices of node node2" in said
    assert "deleted" in part.kubectl("delete", "resourceslice", own["metadata"]["name"], check=False, **as_agent)
    eventually(lambda: len(part.slices("node1")) == 4, "the slice")


@pytest.mark.case("K6")
def test_the_planners_class_is_not_anybodys(tenant: Tenant) -> None:
    """Case K6."""
    part = tenant.part
    part.kubectl("-n", tenant.namespace, "create", "rolebinding", "jane", "--clusterrole=edit", "--user=jane")
    rules = ["--verb=create,get", "--resource=resourceclaims.resource.k8s.io,resourceclaimtemplates.resource.k8s.io"]
    part.kubectl("-n", tenant.namespace, "create", "role", "claims", *rules)
    part.kubectl("-n", tenant.namespace, "create", "rolebinding", "jane-claims", "--role=claims", "--user=jane")

    def create(device_class: str, config: bool) -> str:
        spec: dict[str, object] = {"requests": [{"name": "r", "exactly": {"deviceClassName": device_class}}]}
        if config:
            parameters = {"kind": "ShareConfig", "isolation": "Any"}
            spec["config"] = [{"opaque": {"driver": "gpulet.dev", "parameters": parameters}}]
        claim = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": "mine", "namespace": tenant.namespace},
            "spec": {"devices": spec},
        }
        return part.kubectl("create", "--as=jane", "-f", "-", stdin=json.dumps(claim), check=False)

    assert "are the operator's alone" in create("gpulet.dev", config=False)
    assert "are the operator's alone" in create("shares.gpulet.dev", config=True)
    assert "mine created" in create("shares.gpulet.dev", config=False)
