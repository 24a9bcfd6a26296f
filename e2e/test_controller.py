"""The controller against a real scheduler that says no, with real kubelets and a real Triton."""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.checks import audit, endstate
from e2e.cluster import local
from e2e.cluster.commands import say
from e2e.demo import install, models
from e2e.kubectl import Kubectl
from gpulet.v2.client import V2Client, V2Error

pytestmark = pytest.mark.timeout(400)
NAME, NAMESPACE = "ctl", "ctl"
PRODUCT = "NVIDIA-A100-SXM4-80GB"


@pytest.fixture(scope="module")
def kubectl() -> Iterator[Kubectl]:
    made = install.cluster(NAME, say)
    install.gpulet(made, say)
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    made.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}})
    made.apply(models.config_map(NAMESPACE, "shelf"), profile(), tuned_volume())
    yield made
    if not os.environ.get("GPULET_E2E_KEEP"):
        local.down(NAME, say)


@pytest.fixture(autouse=True)
def clean(kubectl: Kubectl) -> Iterator[None]:
    """Each test leaves nothing: the last claim of the finished (failure cases F3, L9)."""
    yield
    for kind in ("inferencemodels.gpulet.dev", "tuningjobs.gpulet.dev", "pods", "resourceclaims"):
        kubectl.run("-n", NAMESPACE, "delete", kind, "--all", "--wait=true")
    install.eventually("every share to be gone", lambda: not shares(kubectl), timeout_s=60)


def profile() -> dict[str, Any]:
    """Latency of shelf's net at one share: the tests need a plan, not a good one."""
    point = {
        "product": PRODUCT,
        "computePercent": 40,
        "batch": 1,
        "latencyMicroseconds": {"mean": 70_000, "p50": 70_000, "p99": 90_000},
        "throughputPerSecond": 14,
        "memoryMebibytes": 1024,
    }
    return {
        "apiVersion": "gpulet.dev/v1alpha1",
        "kind": "ModelProfile",
        "metadata": {"name": "given", "namespace": NAMESPACE},
        "spec": {"points": [point]},
    }


def tuned_volume() -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "tuned", "namespace": NAMESPACE},
        "spec": {
            "storageClassName": "gpulet-shared",
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }


def tuning_job(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "gpulet.dev/v1alpha1",
        "kind": "TuningJob",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "model": {"uri": "configmap://model-shelf/model.onnx", "format": "onnx"},
            "output": {"uri": f"pvc://tuned/{name}"},
        }
        | spec,
    }


def model(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "gpulet.dev/v1alpha1",
        "kind": "InferenceModel",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "model": {"uri": "configmap://model-shelf/model.onnx", "format": "onnx"},
            "slo": {"latencyMilliseconds": 1000, "percentile": 90},
            "load": {"requestsPerSecond": 1},
            "profileRef": {"name": "given"},
        }
        | spec,
    }


def foreign_claim(name: str, node: str) -> list[dict[str, Any]]:
    """An admin's own claim for a whole A100 of a node, and the pod that takes it."""
    attributes = "device.attributes['gpulet.dev']"
    selector = f"{attributes}.product == '{PRODUCT}' && {attributes}.type == 'gpu'"
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "devices": {
                "requests": [
                    {
                        "name": "gpu",
                        "exactly": {
                            "deviceClassName": "gpulet.dev",
                            "selectors": [{"cel": {"expression": selector}}],
                            "capacity": {"requests": {"computePercent": "100", "memory": "1Gi", "clients": "1"}},
                        },
                    }
                ]
            }
        },
    }
    container = {
        "name": "pause",
        "image": "localhost/gpulet-operator:dev",
        "imagePullPolicy": "IfNotPresent",
        "command": ["sleep", "3600"],
        "resources": {"claims": [{"name": "gpu"}]},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "terminationGracePeriodSeconds": 1,
            "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
            "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
            "containers": [container],
        },
    }
    return [claim, pod]


def shares(kubectl: Kubectl) -> list[dict[str, Any]]:
    return kubectl.list("gpulets.gpulet.dev", "-n", NAMESPACE)


def condition(kubectl: Kubectl, name: str, type_: str, *, kind: str = "inferencemodels.gpulet.dev") -> dict[str, Any]:
    found = kubectl.get(kind, name, NAMESPACE) or {}
    for item in found.get("status", {}).get("conditions", ()):
        if item["type"] == type_:
            return dict(item)
    return {"status": "absent", "reason": "", "message": ""}


def of_job(kubectl: Kubectl, kind: str, name: str) -> list[dict[str, Any]]:
    return kubectl.list(kind, "-n", NAMESPACE, "-l", f"gpulet.dev/tuning-job={name}")


def ready(kubectl: Kubectl, name: str) -> bool:
    return condition(kubectl, name, "Ready")["status"] == "True"


def scheduler_pid() -> int:
    return next(pid for n, pid in local.processes(local.existing(NAME)).items() if "scheduler" in n and pid)


def test_a_claim_that_takes_the_share_first_sends_the_model_elsewhere(kubectl: Kubectl) -> None:
    """The scheduler's message is in the status, the model serves elsewhere, and nothing oscillates."""
    kubectl.apply(model("first"))
    install.eventually("a plan", lambda: shares(kubectl), timeout_s=30)
    wanted = shares(kubectl)[0]["spec"]["device"]["node"]
    kubectl.run("-n", NAMESPACE, "delete", "inferencemodels.gpulet.dev", "first")
    install.eventually("the share to be gone", lambda: not shares(kubectl), timeout_s=60)
    pid = scheduler_pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        kubectl.apply(*foreign_claim("foreign", wanted))
        time.sleep(2)
        kubectl.apply(model("second"))
        install.eventually("a plan that cannot know", lambda: shares(kubectl), timeout_s=30)
        assert shares(kubectl)[0]["spec"]["device"]["node"] == wanted
    finally:
        os.kill(pid, signal.SIGCONT)
    install.eventually("the model to serve elsewhere", lambda: ready(kubectl, "second"), timeout_s=150)
    (share,) = [g for g in shares(kubectl) if not g["metadata"].get("deletionTimestamp")]
    foreign = kubectl.get("resourceclaims", "foreign", NAMESPACE) or {}
    (taken,) = foreign["status"]["allocation"]["devices"]["results"]
    assert share["spec"]["device"]["gpu"].lower() not in taken["pool"]
    time.sleep(20)
    assert [g["metadata"]["name"] for g in shares(kubectl)] == [share["metadata"]["name"]]


def test_a_namespace_s_quota_is_told_and_stops_nobody_else(kubectl: Kubectl) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "none", "namespace": NAMESPACE},
        "spec": {"hard": {"pods": "0"}},
    }
    kubectl.apply(quota)
    try:
        time.sleep(2)
        kubectl.apply(model("refused"))
        install.eventually(
            "the quota's words in the status",
            lambda: "exceeded quota" in condition(kubectl, "refused", "Planned")["message"],
            timeout_s=60,
        )
    finally:
        kubectl.run("-n", NAMESPACE, "delete", "resourcequota", "none")


def test_a_policy_that_cannot_be_read_is_told_on_its_config_map(kubectl: Kubectl) -> None:
    here = ("-n", "gpulet-system")
    good = (kubectl.get("configmap", "gpulet-policy", "gpulet-system") or {})["data"]

    def patch(text: str) -> None:
        kubectl.run(*here, "patch", "configmap", "gpulet-policy", "-p", json.dumps({"data": {"policy.yaml": text}}))

    def told() -> bool:
        found = kubectl.list("events.events.k8s.io", *here)
        return any(e["reason"] == "InvalidPolicy" and "did you mean headroom" in e["note"] for e in found)

    try:
        patch("headrom: 0.3")
        install.eventually("the Event", told, timeout_s=30)
    finally:
        patch(good["policy.yaml"])


def test_what_cannot_be_served_says_so_and_the_others_go_on(kubectl: Kubectl) -> None:
    """An objective that cannot be met, a rate beyond the cluster, a missing file: reason and remedy on each."""
    missing = {"uri": "configmap://model-shelf/nowhere.onnx", "format": "onnx"}
    kubectl.apply(
        model("good"),
        model("hopeless", slo={"latencyMilliseconds": 1}),
        model("flood", load={"requestsPerSecond": 100_000}),
        model("missing", model=missing),
    )
    install.eventually("the good one to serve", lambda: ready(kubectl, "good"), timeout_s=120)
    assert condition(kubectl, "hopeless", "Planned")["reason"] == "ObjectiveInfeasible"
    assert condition(kubectl, "hopeless", "Stalled")["status"] == "True"
    assert condition(kubectl, "flood", "Planned")["status"] == "False"
    assert condition(kubectl, "flood", "Planned")["reason"] == "RateBeyondCluster"
    install.eventually(
        "the missing file to be told",
        lambda: condition(kubectl, "missing", "Serving")["reason"] == "ModelMissing",
        timeout_s=90,
    )
    assert "spec.model.uri" in condition(kubectl, "missing", "Serving")["message"]
    assert ready(kubectl, "good")


def test_a_job_that_cannot_be_tuned_fails_with_a_remedy(kubectl: Kubectl) -> None:
    kubectl.apply(tuning_job("plan", model={"uri": "pvc://x/model.plan", "format": "tensorrt"}))

    def failed() -> bool:
        succeeded = condition(kubectl, "plan", "Succeeded", kind="tuningjobs.gpulet.dev")
        return succeeded["reason"] == "NotTunable" and "ONNX" in succeeded["message"]

    install.eventually("the reason and the remedy", failed, timeout_s=30)


def test_spec_tuning_makes_a_job_and_takes_it_away_again(kubectl: Kubectl) -> None:
    """Applied twice it is one job; while it searches nobody but its own pods gets in; its end takes seconds."""
    wanted = model("tuned", tuning={"trials": 4000, "output": {"uri": "pvc://tuned/tuned"}})
    kubectl.apply(wanted)
    install.eventually("it to serve", lambda: ready(kubectl, "tuned"), timeout_s=120)
    install.eventually("its search", lambda: _searching(of_job(kubectl, "pods", "tuned-tuning")), timeout_s=120)
    tuned = condition(kubectl, "tuned", "Tuned")
    assert (tuned["status"], tuned["reason"]) == ("Unknown", "Searching") and "tuned-tuning" in tuned["message"]
    assert [p["metadata"]["name"] for p in of_job(kubectl, "networkpolicies", "tuned-tuning")] == [
        "tuned-tuning-tracker"
    ]
    before = endstate.versions(kubectl)
    kubectl.apply(wanted)
    time.sleep(8)
    assert endstate.versions(kubectl) == before
    kubectl.apply(model("tuned"))
    started = time.monotonic()
    install.eventually(
        "the job and its pods to be gone",
        lambda: (
            not kubectl.get("tuningjobs.gpulet.dev", "tuned-tuning", NAMESPACE)
            and not of_job(kubectl, "pods", "tuned-tuning")
        ),
        timeout_s=25,
    )
    say(f"gone {time.monotonic() - started:.1f} s after spec.tuning")
    assert ready(kubectl, "tuned")
    cluster = local.existing(NAME)
    assert audit.used(cluster.audit_log, audit.CONTROLLER) >= audit.AUTOTUNED
    assert audit.denied(cluster.audit_log, audit.CONTROLLER) == []


def _searching(pods: list[dict[str, Any]]) -> bool:
    roles = {p["metadata"]["labels"]["gpulet.dev/role"] for p in pods if p["status"].get("phase") == "Running"}
    return roles == {"tracker", "server", "client"}


def test_a_tuning_job_of_that_name_that_is_the_user_s_own_is_left_alone(kubectl: Kubectl) -> None:
    kubectl.apply(tuning_job("mine-tuning", trials=9, suspend=True))
    kubectl.apply(model("mine", tuning={"trials": 8, "output": {"uri": "pvc://tuned/mine"}}))
    install.eventually(
        "the model to say so", lambda: condition(kubectl, "mine", "Tuned")["reason"] == "NameTaken", timeout_s=30
    )
    kept = kubectl.get("tuningjobs.gpulet.dev", "mine-tuning", NAMESPACE) or {}
    assert kept["spec"]["trials"] == 9 and kept["metadata"]["generation"] == 1
    assert "ownerReferences" not in kept["metadata"]


def test_a_quota_s_words_are_on_the_tuning_job_until_the_quota_goes(kubectl: Kubectl) -> None:
    hard = {"spec": {"hard": {"pods": "0"}}}
    head = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none", "namespace": NAMESPACE}}
    kubectl.apply(head | hard)

    def said() -> dict[str, Any]:
        return condition(kubectl, "short", "Succeeded", kind="tuningjobs.gpulet.dev")

    try:
        time.sleep(2)
        kubectl.apply(tuning_job("short", batch=1, computePercent=40, trials=8))
        install.eventually("the quota's words", lambda: "exceeded quota" in said()["message"], timeout_s=30)
        assert (said()["status"], said()["reason"]) == ("Unknown", "Refused")
    finally:
        kubectl.run("-n", NAMESPACE, "delete", "resourcequota", "none")
    install.eventually("the search to start", lambda: said()["reason"] == "Searching", timeout_s=90)


class Caller:
    """Sends one request after the other to a model's Service, each on a connection of its own, and counts."""

    def __init__(self, kubectl: Kubectl, name: str) -> None:
        service = kubectl.get("service", name, NAMESPACE) or {}
        self._host, self._name = service["spec"]["clusterIP"], name
        self.answered, self.lost = 0, list[str]()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._call, daemon=True)

    def __enter__(self) -> "Caller":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)

    def _call(self) -> None:
        with V2Client(8000, host=self._host) as client:
            body, headers = client.batch(client.metadata(self._name), 1)
        while not self._stop.wait(0.15):
            try:
                with V2Client(8000, host=self._host, timeout_s=20) as client:
                    client.infer(self._name, body, headers)
                self.answered += 1
            except V2Error as error:
                self.lost.append(str(error))


def test_a_rollout_loses_no_request(kubectl: Kubectl) -> None:
    """The old share serves until the new one does, leaves the Service, and drains."""
    kubectl.apply(model("rolled"))
    install.eventually("it to serve", lambda: ready(kubectl, "rolled"), timeout_s=120)
    (before,) = (s["metadata"]["name"] for s in shares(kubectl))
    with Caller(kubectl, "rolled") as caller:
        time.sleep(3)
        kubectl.apply(model("rolled", podTemplate={"labels": {"version": "two"}}))

        def rolled() -> bool:
            names = [s["metadata"]["name"] for s in shares(kubectl)]
            return len(names) == 1 and names != [before] and ready(kubectl, "rolled")

        install.eventually("the new share alone", rolled, timeout_s=150)
        time.sleep(3)
    assert caller.lost == [] and caller.answered > 20


@pytest.mark.parametrize(
    "spec",
    [
        {"selector": {"app": "mine"}, "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]},
        # Names none of the fields that ours would have: an apply would merge with it.
        {"type": "ExternalName", "externalName": "elsewhere.example"},
    ],
    ids=["selector", "external name"],
)
def test_a_service_of_that_name_that_is_somebody_s_own_is_left_alone(kubectl: Kubectl, spec: dict[str, Any]) -> None:
    own = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "shared", "namespace": NAMESPACE}, "spec": spec}
    kubectl.apply(own)
    try:
        kubectl.apply(model("shared"))
        install.eventually(
            "a condition that says so",
            lambda: condition(kubectl, "shared", "Serving")["reason"] == "NameTaken",
            timeout_s=60,
        )
        kept = kubectl.get("services", "shared", NAMESPACE) or {}
        assert {name: kept["spec"].get(name) for name in spec if name != "ports"} == {
            name: value for name, value in spec.items() if name != "ports"
        }
        assert "ownerReferences" not in kept["metadata"]
    finally:
        kubectl.run("-n", NAMESPACE, "delete", "inferencemodels.gpulet.dev/shared", "service/shared")
