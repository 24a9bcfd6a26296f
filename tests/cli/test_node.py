"""`gpulet node` and `gpulet doctor` over objects as an API server holds them: what is told, remedies, exit codes."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from gpulet.agent.slices import plan_pool
from gpulet.cli import doctor, node
from gpulet.cli.main import app
from gpulet.cli.node import NodePart, UnknownNodeError
from gpulet.nvidia.simulated import SimulatedSource

A100 = "NVIDIA-A100-SXM4-80GB"
PARENT = {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}


def slices(tmp_path: Path, name: str = "node1", *, health: Any = "healthy", owner: str = "") -> list[dict[str, Any]]:
    """What an agent publishes."""
    source = SimulatedSource(name, [(A100, False, 500)], tmp_path / "state.json", tmp_path / "faults.json")
    return [
        raw
        for gpu in source.gpus()
        for raw in plan_pool(
            name, replace(gpu, health=health), [], source="simulated", open_to_all=False, parent=PARENT, owner=owner
        )
    ]


def a_node(name: str = "node1", **info: str) -> dict[str, Any]:
    versions = {"kubeletVersion": "v1.37.2", "containerRuntimeVersion": "containerd://2.1.9"} | info
    ready = {"type": "Ready", "status": "True"}
    return {"metadata": {"name": name}, "status": {"nodeInfo": versions, "conditions": [ready]}}


def part_pod(what: str, on: str = "node1", *, ready: bool = True, **status: Any) -> dict[str, Any]:
    condition = {"type": "Ready", "status": "True" if ready else "False"}
    return {
        "metadata": {
            "namespace": "gpulet-node",
            "name": f"{what}-x",
            "uid": f"{what}-{on}",
            "labels": {"app.kubernetes.io/name": what},
        },
        "spec": {"nodeName": on, "containers": []},
        "status": {"phase": "Running", "conditions": [condition], **status},
    }


def claim(pool: str, name: str = "c", **conditions: tuple[str, str, str]) -> dict[str, Any]:
    result = {
        "driver": "gpulet.dev",
        "pool": pool,
        "device": "gpu-0",
        "shareID": "s",
        "request": "gpulet",
        "consumedCapacity": {"computePercent": "40", "memory": "10Gi", "clients": "1"},
    }
    told = [{"type": t, "status": s, "reason": r, "message": m} for t, (s, r, m) in conditions.items()]
    place = {"driver": "gpulet.dev", "pool": pool, "device": "gpu-0", "shareID": "s", "conditions": told}
    return {
        "metadata": {"namespace": "vision", "name": name, "uid": name},
        "status": {"allocation": {"devices": {"results": [result]}}, "devices": [place]},
    }


def user_pod(name: str = "c", phase: str = "Running") -> dict[str, Any]:
    return {
        "metadata": {"namespace": "vision", "name": f"pod-{name}", "uid": f"pod-{name}"},
        "spec": {
            "nodeName": "node1",
            "containers": [{"name": "x"}],
            "resourceClaims": [{"name": "g", "resourceClaimName": name}],
        },
        "status": {"phase": phase},
    }


@pytest.fixture
def healthy(tmp_path: Path) -> NodePart:
    published = slices(tmp_path)
    pool = published[0]["spec"]["pool"]["name"]
    good = claim(pool, Ready=("True", "Prepared", ""), Enforced=("True", "CPUQuota", ""))
    return NodePart(
        nodes=[a_node(), a_node("cpu-only")],
        slices=published,
        claims=[good],
        pods=[part_pod("gpulet-agent"), part_pod("gpulet-mps-runner"), user_pod()],
        daemon_sets=[{"metadata": {"name": n}} for n in ("gpulet-agent", "gpulet-mps-runner")],
        device_classes=[{"metadata": {"name": n}} for n in ("gpulet.dev", "shares.gpulet.dev")],
    )


def problems(part: NodePart, name: str | None = "node1") -> list[doctor.Finding]:
    return [f for f in doctor.diagnose(part, name) if f.state == "problem"]


def test_what_is_on_a_node(healthy: NodePart) -> None:
    """One entry a GPU, one a share with its pods and conditions; nothing is wrong."""
    (found,) = [node.facts(healthy, of) for of in healthy.named(None)]
    assert found["wrong"] == []
    assert [(g["product"], g["health"], g["devices"]) for g in found["gpus"]] == [(A100, "healthy", 1)]
    (share,) = found["shares"]
    assert (share["claim"], share["computePercent"], share["memoryMebibytes"]) == ("vision/c", 40, 10240)
    assert share["pods"] == {"pod-c": "Running"}
    lines = "\n".join(node.text(found))
    assert "vision/c (pod-c Running)  Enforced True CPUQuota" in lines and "!" not in lines


@pytest.mark.case("E10")
def test_shares_of_another_node_are_not_this_ones(healthy: NodePart, tmp_path: Path) -> None:
    """Case E10: node1 is no prefix of node10."""
    published = slices(tmp_path, "node10")
    there = claim(published[0]["spec"]["pool"]["name"], "there")
    both = replace(
        healthy,
        nodes=[*healthy.nodes, a_node("node10")],
        slices=[*healthy.slices, *published],
        claims=[*healthy.claims, there],
    )
    shares = {f["node"]: [s["claim"] for s in f["shares"]] for f in (node.facts(both, n) for n in both.named(None))}
    assert shares == {"node1": ["vision/c"], "node10": ["vision/there"]}


def test_a_share_that_is_not_held_is_wrong(healthy: NodePart) -> None:
    pool = healthy.slices[0]["spec"]["pool"]["name"]
    bad = claim(pool, Ready=("True", "Prepared", ""), Enforced=("False", "Tampered", "2 client processes, 1 claimed"))
    part = replace(healthy, claims=[bad])
    assert node.facts(part, part.nodes[0])["wrong"] == [
        "claim vision/c: Enforced is False (Tampered): 2 client processes, 1 claimed"
    ]
    (finding,) = problems(part)
    assert finding.object == "claim vision/c" and "claim more clients" in finding.remedy


def test_a_healthy_node_has_no_findings(healthy: NodePart) -> None:
    assert problems(healthy) == []
    assert doctor.text(doctor.diagnose(healthy, None))[-1].startswith("all ")


@pytest.mark.case("A1", "A3")
def test_every_missing_part_is_a_finding_with_a_remedy(healthy: NodePart) -> None:
    """Cases A1, A3: what is missing is named, with what it costs."""
    bare = replace(healthy, slices=[], claims=[], pods=[], daemon_sets=[], device_classes=[])
    found = {f.object: f for f in problems(bare)}
    assert set(found) == {
        "DeviceClass gpulet.dev",
        "DeviceClass shares.gpulet.dev",
        "DaemonSet gpulet-node/gpulet-agent",
        "DaemonSet gpulet-node/gpulet-mps-runner",
        "gpulet-agent on node1",
        "gpulet-mps-runner on node1",
    }
    assert all(f.remedy for f in found.values())
    (nothing,) = problems(replace(healthy, slices=[], claims=[]))
    assert nothing.message == "publishes no GPU" and "source: nvml" in nothing.remedy
    (everywhere,) = [f for f in problems(bare, None) if f.object == "cluster"]
    assert "kubectl apply" in everywhere.remedy


@pytest.mark.case("A18")
@pytest.mark.parametrize(
    ("status", "said"),
    [
        (
            {"containerStatuses": [{
                "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}},
                "lastState": {"terminated": {"message": "x\ngpulet agent: cdiDirectory: /cdi cannot be written to"}},
            }]},
            "CrashLoopBackOff: gpulet agent: cdiDirectory: /cdi cannot be written to",
        ),
        ({"containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull"}}}]}, "ErrImagePull"),
        ({"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "message": "0/1 nodes: taint"}
        ]}, "0/1 nodes: taint"),
    ],
)  # fmt: skip
def test_an_agent_that_is_not_ready_says_why_in_its_own_words(
    healthy: NodePart, status: dict[str, Any], said: str
) -> None:
    """Case A18."""
    pod = part_pod("gpulet-agent", ready=False, **status)
    (finding,) = problems(replace(healthy, pods=[pod, part_pod("gpulet-mps-runner")]))
    assert said in finding.message and "logs gpulet-agent-x" in finding.remedy


@pytest.mark.case("A9", "N1")
@pytest.mark.parametrize(
    ("health", "owner", "message", "remedy"),
    [
        ("lost", "", "is lost", "reset the GPU or boot"),
        ("degraded", "", "is degraded", "five healthy minutes"),
        ("healthy", "NVIDIADevicePlugin", "is withdrawn: NVIDIADevicePlugin", "gpu.deploy.device-plugin=false"),
        ("healthy", "ForeignMPSDaemon", "is withdrawn: ForeignMPSDaemon", "quit it"),
    ],
)
def test_gpus_that_take_nothing_new(
    healthy: NodePart, tmp_path: Path, health: str, owner: str, message: str, remedy: str
) -> None:
    """Cases A9, N1."""
    part = replace(healthy, slices=slices(tmp_path, health=health, owner=owner))
    (finding,) = problems(part)
    assert finding.message == message and remedy in finding.remedy
    assert node.facts(part, part.nodes[0])["wrong"]


@pytest.mark.parametrize(
    ("info", "said"),
    [
        ({"kubeletVersion": "v1.36.1"}, "kubelet v1.36.1 is older than 1.36.2"),
        ({"containerRuntimeVersion": "containerd://1.7.29"}, "containerd://1.7.29 does not read CDI files"),
    ],
)
def test_versions_that_cannot_work(healthy: NodePart, info: dict[str, str], said: str) -> None:
    (finding,) = problems(replace(healthy, nodes=[a_node(**info)]))
    assert finding.message.startswith(said)


def test_a_prepare_that_fails_is_told_while_its_pod_waits(healthy: NodePart) -> None:
    note = "Failed to prepare dynamic resources: No space left on device: /var/lib/gpulet/claims/c.json; free some"
    event = {
        "reason": "FailedPrepareDynamicResources",
        "note": note,
        "regarding": {"namespace": "vision", "name": "pod-late"},
    }
    waiting = replace(healthy, pods=[*healthy.pods, user_pod("late", "Pending")], events=[event])
    (finding,) = problems(waiting)
    assert (finding.object, finding.message) == ("pod vision/pod-late", note)
    assert problems(replace(waiting, pods=[*healthy.pods, user_pod("late")])) == [], "it runs by now"


def test_an_unknown_node_is_named_with_those_there_are(healthy: NodePart) -> None:
    with pytest.raises(UnknownNodeError, match="there is no node nod; there are: cpu-only, node1"):
        healthy.named("nod")


@pytest.mark.parametrize("command", ["node", "doctor"])
def test_the_commands_explain_themselves_and_fail_in_one_line(tmp_path: Path, command: str) -> None:
    """Exit code 1 where there is no cluster to ask, and 2 is explained as a no."""
    helped = CliRunner().invoke(app, [command, "--help"])
    assert helped.exit_code == 0 and "Exit code 0" in helped.output
    config = {"clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}], "users": [{"name": "u"}]}
    config |= {"contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}], "current-context": "x"}
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config"} | config))
    failed = CliRunner().invoke(app, [command, "--kubeconfig", str(path)])
    assert failed.exit_code == 1
    assert failed.output.startswith("error: ") and len(failed.output.splitlines()) == 1


def test_facts_are_json(healthy: NodePart) -> None:
    assert json.loads(json.dumps(node.facts(healthy, healthy.nodes[0])))["node"] == "node1"
