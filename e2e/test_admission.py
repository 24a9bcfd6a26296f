"""Who may write what, and what may change once it is written: asked of a real API server, as real users."""

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.bad_objects import API, GPULET, JOB, MODEL
from e2e.cluster import local
from e2e.cluster.commands import say
from e2e.kubectl import Kubectl, KubectlError

pytestmark = pytest.mark.timeout(240)
ROOT = Path(__file__).parent.parent
NAME = "admission"
NAMESPACE = "default"
OPERATOR = "system:serviceaccount:gpulet-system:gpulet-controller"


@pytest.fixture(scope="module")
def kubectl() -> Iterator[Kubectl]:
    cluster = local.up(NAME, say)
    made = Kubectl(cluster.kubeconfig)
    install(made)
    yield made
    if not os.environ.get("GPULET_E2E_KEEP"):
        local.down(NAME, say)


def install(kubectl: Kubectl) -> None:
    """Kinds, permissions and admission; nothing that runs. User alice may edit; carol may write Gpulets as well."""
    kubectl.run("apply", "--server-side", "-k", str(ROOT / "crds"))
    kubectl.run("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
    system, node = ROOT / "manifests" / "system", ROOT / "manifests" / "node"
    files = [system / f for f in ("namespace.yaml", "rbac.yaml", "users.yaml", "reserved.yaml")]
    files += [node / f for f in ("deviceclasses.yaml", "deviceclass-use.yaml")]
    kubectl.run("apply", "--server-side", *(f"--filename={f}" for f in files))
    kubectl.apply(
        _role(
            "gpulets-by-hand",
            [{"apiGroups": ["gpulet.dev"], "resources": ["gpulets"], "verbs": ["get", "create", "patch"]}],
        ),
        _bound("alice", "edit"),
        _bound("carol", "edit"),
        _bound("carol", "gpulets-by-hand"),
    )
    # A policy holds a moment after it is written.
    _eventually(lambda: bool(_refusal(kubectl, gpulet("early", origin="planned"))))


def _role(name: str, rules: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name},
        "rules": rules,
    }


def _bound(user: str, role: str) -> dict[str, Any]:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": f"{user}-{role}", "namespace": NAMESPACE},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    }


def _eventually(happened: Callable[[], bool], timeout_s: float = 20.0) -> None:
    end = time.monotonic() + timeout_s
    while not happened():
        assert time.monotonic() < end, "what was applied does not hold yet"
        time.sleep(0.5)


def of_kind(kind: str, name: str, spec: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": API,
        "kind": kind,
        "metadata": {"name": name, "namespace": NAMESPACE} | metadata,
        "spec": spec,
    }


def gpulet(name: str, *, origin: str) -> dict[str, Any]:
    return of_kind("Gpulet", name, GPULET, labels={"gpulet.dev/origin": origin})


def _refusal(kubectl: Kubectl, manifest: dict[str, Any], user: str | None = None) -> str:
    """What the API server says against it, empty if nothing; nothing is stored."""
    who = [f"--as={user}"] if user else []
    try:
        kubectl.run("create", "--dry-run=server", "-f", "-", *who, stdin=json.dumps(manifest))
    except KubectlError as error:
        return str(error)
    return ""


def _change(kubectl: Kubectl, kind: str, name: str, patch: str, user: str | None = None) -> str:
    """As ``_refusal``, of a merge patch; stored if nothing is said against it."""
    who = [f"--as={user}"] if user else []
    try:
        kubectl.run("patch", kind, name, "-n", NAMESPACE, "--type=merge", "-p", patch, *who)
    except KubectlError as error:
        return str(error)
    return ""


def test_a_user_asks_for_models_and_makes_no_shares_by_hand(kubectl: Kubectl) -> None:
    """Failure case K3; the roles reach users through Kubernetes' own edit and view."""
    model = of_kind("InferenceModel", "asked", MODEL)
    # The controller manager adds our rules to `edit` a moment after they are written.
    _eventually(lambda: not _refusal(kubectl, model, "alice"))
    assert not _refusal(kubectl, of_kind("TuningJob", "asked", JOB), "alice")
    assert "forbidden" in _refusal(kubectl, gpulet("by-hand", origin="manual"), "alice")


def test_origin_plan_is_the_operator_s_alone(kubectl: Kubectl) -> None:
    """Failure case K6."""
    assert "gpulet.dev/origin" in _refusal(kubectl, gpulet("mine", origin="plan"), "carol")
    assert "gpulet.dev/origin" in _refusal(kubectl, gpulet("mine", origin="else"), "carol")
    assert not _refusal(kubectl, gpulet("mine", origin="manual"), "carol")
    assert not _refusal(kubectl, gpulet("planned", origin="plan"), OPERATOR)
    kubectl.apply(gpulet("planned", origin="plan"), gpulet("manual", origin="manual"))
    for name, value in (("planned", "null"), ("planned", '"manual"'), ("manual", '"plan"')):
        patch = f'{{"metadata":{{"labels":{{"gpulet.dev/origin":{value}}}}}}}'
        assert "gpulet.dev/origin" in _change(kubectl, "gpulets", name, patch, "carol"), (name, value)
    # Other metadata is open: the garbage collector takes owners away that are gone.
    assert not _change(kubectl, "gpulets", "planned", '{"metadata":{"annotations":{"note":"x"}}}', "carol")


def test_no_annotation_brings_a_share_past_the_scheduler(kubectl: Kubectl) -> None:
    def pod(device: str) -> dict[str, Any]:
        annotations = {"cdi.k8s.io/device": device}
        spec = {"containers": [{"name": "c", "image": "localhost/x:1"}], "automountServiceAccountToken": False}
        metadata = {"name": "sly", "namespace": NAMESPACE, "annotations": annotations}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}

    assert "ResourceClaims" in _refusal(kubectl, pod("gpulet.dev/share=0a1b-gpulet"))
    assert "ResourceClaims" in _refusal(kubectl, pod("vendor.example/x=1,gpulet.dev/share=0a1b-gpulet"))
    assert "ResourceClaims" not in _refusal(kubectl, pod("vendor.example/x=1"))


def test_a_tuning_job_is_decided_once(kubectl: Kubectl) -> None:
    """Failure case G6: no edit is ignored; it is done, or refused with the field named."""
    kubectl.apply(of_kind("TuningJob", "decided", JOB))
    refused = {
        "trials": "5",
        "batch": "4",
        "computePercent": "30",
        "parallelism": '{"clients": 3}',
        "output": '{"uri": "pvc://store/else"}',
        "modelRef": '{"name": "other"}',
    }
    for field, value in refused.items():
        told = _change(kubectl, "tuningjobs", "decided", f'{{"spec":{{"{field}":{value}}}}}')
        assert f"spec.{field}" in told and "immutable" in told, told
    other = '{"spec":{"modelRef":null,"model":{"uri":"configmap://m/model.onnx","format":"onnx"}}}'
    assert "immutable" in _change(kubectl, "tuningjobs", "decided", other)
    assert not _change(kubectl, "tuningjobs", "decided", '{"spec":{"suspend":true,"deadlineSeconds":60}}')


def test_defaults_are_visible_and_a_model_may_change(kubectl: Kubectl) -> None:
    """Failure cases E7, I1: an absent limit is written out; the same file again is no change."""
    kubectl.apply(of_kind("InferenceModel", "plain", MODEL))
    kubectl.apply(of_kind("InferenceModel", "plain", MODEL))
    stored = kubectl.get("inferencemodels.gpulet.dev", "plain", NAMESPACE)
    assert stored is not None
    assert stored["metadata"]["generation"] == 1
    assert stored["spec"]["slo"]["percentile"] == 99
    assert stored["spec"]["sharing"] == {"mode": "Auto", "isolation": "Namespace"}
    assert not {"load", "podTemplate", "tuning"} & stored["spec"].keys()
    kubectl.apply(of_kind("InferenceModel", "plain", MODEL | {"slo": {"latencyMilliseconds": 50}}))
    stored = kubectl.get("inferencemodels.gpulet.dev", "plain", NAMESPACE)
    assert stored is not None and stored["metadata"]["generation"] == 2
