"""Pods of gpulets: what all have in common, the serving pod, the profiling pod.

All run under Pod Security ``restricted``, without access to the API server; the share comes with the claim.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gpulet.api import names, workload
from gpulet.api.gpulet import Gpulet
from gpulet.api.inferencemodel import InferenceModelSpec, PodTemplate
from gpulet.build.claim import reference_of
from gpulet.build.gpulet import owner_reference
from gpulet.build.source import ModelFile

_CLAIM_IN_POD = "gpulet"
_USER_ID = 65532
_GRACE_SECONDS = 30
# Beside twice its patience (for callers, then for what is in flight): endpoints that linger, tritonserver's own end.
_ENDING_SECONDS = 15


@dataclass(frozen=True)
class Host:
    """What a pod takes of its node beside the share."""

    cpu: str
    memory: str
    tolerations: tuple[dict[str, Any], ...] = ()


def share_cpu(compute_percent: int, millicores: int, otherwise: str) -> str:
    """CPU of the container that holds the share: on a simulated GPU the share itself, else what the policy says."""
    if millicores == 0:
        return otherwise
    return f"{max(1, -(-compute_percent * millicores // 100))}m"


def container(
    name: str,
    *,
    image: str,
    command: list[str],
    cpu: str,
    memory: str,
    holds_claim: bool = False,
) -> dict[str, Any]:
    """A container under ``restricted`` with equal requests and limits."""
    resources: dict[str, Any] = {"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory}}
    if holds_claim:
        resources["claims"] = [{"name": _CLAIM_IN_POD}]
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "args": command,
        "env": [
            {"name": "HOME", "value": "/tmp"},
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        ],
        "resources": resources,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "terminationMessagePolicy": "File",
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }


def pod_spec(
    containers: list[dict[str, Any]],
    *,
    restart: str,
    node: str | None = None,
    claim: str | None = None,
    tolerations: tuple[dict[str, Any], ...] = (),
    volumes: list[dict[str, Any]] | None = None,
    files: Iterable[ModelFile] = (),
) -> dict[str, Any]:
    """A pod's spec under ``restricted``. With ``node``, required affinity to it: the scheduler still has to agree.

    ``files``: those among ``volumes`` that may be images, which are pulled with the secrets of their pod.
    """
    spec: dict[str, Any] = {
        "restartPolicy": restart,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": _GRACE_SECONDS,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER_ID,
            "runAsGroup": _USER_ID,
            "fsGroup": _USER_ID,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": containers,
        "volumes": [{"name": "tmp", "emptyDir": {}}, *(volumes or [])],
    }
    if claim is not None:
        spec["resourceClaims"] = [{"name": _CLAIM_IN_POD, "resourceClaimName": claim}]
    if node is not None:
        term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
        spec["affinity"] = {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
        }
    if tolerations:
        spec["tolerations"] = list(tolerations)
    if secrets := {file.pull_secret for file in files if file.pull_secret is not None}:
        spec["imagePullSecrets"] = [{"name": name} for name in sorted(secrets)]
    return spec


def gpulet_pod(
    gpulet: Gpulet, spec: dict[str, Any], *, labels: dict[str, str], annotations: dict[str, str] | None = None
) -> dict[str, Any]:
    """The pod of a Gpulet: same name, controlled by it."""
    metadata: dict[str, Any] = {
        "name": gpulet.metadata.name,
        "namespace": gpulet.metadata.namespace,
        "labels": labels | {names.LABEL_GPULET: gpulet.metadata.name, names.LABEL_MANAGED_BY: names.MANAGED_BY},
        "ownerReferences": [owner_reference(reference_of(gpulet), controller=True)],
    }
    if annotations:
        metadata["annotations"] = annotations
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def mount_model(target: dict[str, Any], model: str, file: ModelFile) -> dict[str, Any]:
    """Mounts the model's file into ``target`` (a container, changed in place); returns the pod's volume."""
    volume = f"model-{model}"[:63].rstrip("-")
    mount: dict[str, Any] = {"name": volume, "mountPath": f"{workload.MODEL_ROOT}/{model}", "readOnly": True}
    target["volumeMounts"].append(mount)
    return {"name": volume} | file.volume


def mount_source(target: dict[str, Any], model: str, file: ModelFile) -> dict[str, Any]:
    """Mounts the model's own file beside a tuned artifact, as ``mount_model`` does with what is served."""
    volume = f"source-{model}"[:63].rstrip("-")
    mount: dict[str, Any] = {"name": volume, "mountPath": f"{workload.SOURCE_ROOT}/{model}", "readOnly": True}
    target["volumeMounts"].append(mount)
    return {"name": volume} | file.volume


def host_of(template: PodTemplate, *, cpu: str, memory: str) -> Host:
    """What the template asks of the node, or the policy's defaults."""
    tolerations = tuple(t.to_dict() for t in template.tolerations)
    return Host(template.cpu or cpu, template.memory or memory, tolerations)


def _probe(path: str, *, period_s: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": workload.REPORT_PORT},
        "periodSeconds": period_s,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def server_container(spec: workload.ServeSpec, *, image: str, cpu: str, memory: str) -> dict[str, Any]:
    """The container that runs Triton in the share."""
    server = container(
        "server",
        image=image,
        command=["serve", spec.model_dump_json(by_alias=True, exclude_none=True)],
        cpu=cpu,
        memory=memory,
        holds_claim=True,
    )
    server["ports"] = [
        {"name": "http", "containerPort": workload.HTTP_PORT, "protocol": "TCP"},
        {"name": "grpc", "containerPort": workload.GRPC_PORT, "protocol": "TCP"},
        {"name": "metrics", "containerPort": workload.METRICS_PORT, "protocol": "TCP"},
        {"name": "report", "containerPort": workload.REPORT_PORT, "protocol": "TCP"},
    ]
    server["readinessProbe"] = _probe("/ready", period_s=2, failures=2)
    return server


def serving_pod(
    gpulet: Gpulet,
    *,
    spec: workload.ServeSpec,
    files: dict[str, ModelFile],
    sources: dict[str, ModelFile],
    image: str,
    model: InferenceModelSpec,
    host: Host,
    millicores: int,
    routed: bool,
) -> dict[str, Any]:
    """A Triton in the share of ``gpulet``, serving ``spec``.

    ``files``: each model's file by model name; ``sources``: own files of those of which an artifact is served.
    """
    cpu = share_cpu(gpulet.spec.compute_percent, millicores, host.cpu)
    server = server_container(spec, image=image, cpu=cpu, memory=host.memory)
    # A start in a small share takes its time: only a server that stays dumb for two minutes is restarted.
    server["livenessProbe"] = _probe("/healthz", period_s=10, failures=12)
    template = model.pod_template
    server["env"] += [e.to_dict() for e in template.environment]
    volumes = [mount_model(server, name, file) for name, file in files.items()]
    volumes += [mount_source(server, name, file) for name, file in sources.items()]
    body = pod_spec(
        [server],
        restart="Always",
        node=gpulet.spec.device.node,
        claim=gpulet.metadata.name,
        tolerations=host.tolerations,
        volumes=volumes,
        files=files.values(),
    )
    if template.service_account_name:
        body["serviceAccountName"] = template.service_account_name
    body["terminationGracePeriodSeconds"] = math.ceil(2 * spec.patience_seconds) + _ENDING_SECONDS
    labels = {
        **template.labels,
        names.LABEL_MODEL: spec.models[0].name,
        names.LABEL_ROLE: "serve",
        names.LABEL_ROUTED: "true" if routed else "false",
    }
    return gpulet_pod(gpulet, body, labels=labels, annotations=dict(template.annotations))


def profiling_pod(
    gpulet: Gpulet,
    *,
    serve: workload.ServeSpec,
    probe: workload.ProfileSpec,
    file: ModelFile,
    image: str,
    host: Host,
    millicores: int,
) -> dict[str, Any]:
    """The server is a sidecar that holds the share; the prober beside it has CPU of its own, so that it costs none."""
    cpu = share_cpu(gpulet.spec.compute_percent, millicores, host.cpu)
    server = server_container(serve, image=image, cpu=cpu, memory=host.memory)
    server["restartPolicy"] = "Always"
    prober = container(
        "prober",
        image=image,
        command=["profile-run", probe.model_dump_json(by_alias=True, exclude_none=True)],
        cpu="250m",
        memory="256Mi",
    )
    body = pod_spec(
        [prober],
        restart="Never",
        node=gpulet.spec.device.node,
        claim=gpulet.metadata.name,
        tolerations=host.tolerations,
        volumes=[mount_model(server, probe.model, file)],
        files=[file],
    )
    body["initContainers"] = [server]
    # Nobody else calls it: there is nothing to drain.
    body["terminationGracePeriodSeconds"] = 5
    return gpulet_pod(
        gpulet,
        body,
        labels={
            names.LABEL_ROLE: "profile",
            names.LABEL_PROFILE: gpulet.spec.profiling.profile if gpulet.spec.profiling else probe.model,
        },
    )
