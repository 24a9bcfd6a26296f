"""What a TuningJob consists of: tracker, servers in gpulets, clients, merge in a gpulet."""

from dataclasses import dataclass
from typing import Any

from gpulet.api import names, workload
from gpulet.api.gpulet import Gpulet
from gpulet.build.gpulet import owner_reference
from gpulet.build.pod import Host, container, gpulet_pod, mount_model, pod_spec, share_cpu
from gpulet.build.source import ModelFile

# Its start (an import of TVM) takes seconds with it; a demo's limits leave no more.
_TRACKER_CPU = "100m"
_GRACE_SECONDS = 5


@dataclass(frozen=True)
class Tuning:
    """All that the builders need to know of one job."""

    job: dict[str, Any]
    """The TuningJob: apiVersion, kind, metadata."""
    spec: workload.TuneSpec
    files: dict[str, ModelFile]
    """By model name: the model itself and, if it is another, what is served now."""
    image: str
    output_claim: str
    output_folder: str

    @property
    def name(self) -> str:
        return str(self.job["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self.job["metadata"]["namespace"])

    @property
    def tracker(self) -> str:
        return f"{self.name}-tracker"

    @property
    def clients(self) -> str:
        return f"{self.name}-clients"


def tracker_service(tuning: Tuning) -> dict[str, Any]:
    """A stable address for the tracker: clients and servers survive its restart."""
    ports = [("tracker", workload.TRACKER_PORT), ("progress", workload.PROGRESS_PORT)]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(tuning, tuning.tracker, "tracker"),
        "spec": {
            "selector": {names.LABEL_JOB: tuning.name, names.LABEL_ROLE: "tracker"},
            "ports": [{"name": n, "port": p, "targetPort": p, "protocol": "TCP"} for n, p in ports],
        },
    }


def network_policy(tuning: Tuning) -> dict[str, Any]:
    """Tracker and RPC servers run what they are sent and ask nobody who he is: only pods of the same job reach them.

    The controller reads the progress. A cluster whose network does not enforce NetworkPolicies ignores it.
    """
    ours = {"podSelector": {"matchLabels": {names.LABEL_JOB: tuning.name}}}
    controller = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": names.SYSTEM_NAMESPACE}}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(tuning, tuning.tracker, "tracker"),
        "spec": ours
        | {
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [ours]},
                {"from": [controller], "ports": [{"protocol": "TCP", "port": workload.PROGRESS_PORT}]},
            ],
        },
    }


def tracker_pod(tuning: Tuning) -> dict[str, Any]:
    """The tracker hands out servers and answers the progress it reads from the work folder."""
    tracker = container(
        "tracker", image=tuning.image, command=_command("tune-tracker", tuning.spec), cpu=_TRACKER_CPU, memory="512Mi"
    )
    volumes = [_mount_work(tracker, tuning)]
    body = _pod_spec([tracker], restart="Always", volumes=volumes)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": _metadata(tuning, tuning.tracker, "tracker"), "spec": body}


def clients_job(tuning: Tuning, *, cpu: str, memory: str) -> dict[str, Any]:
    """An Indexed Job: client i of n searches shard i. A killed client goes on from its own records."""
    client = container(
        "client", image=tuning.image, command=_command("tune-client", tuning.spec), cpu=cpu, memory=memory
    )
    volumes = [_mount_work(client, tuning)]
    volumes += [mount_model(client, name, file) for name, file in tuning.files.items()]
    body = _pod_spec([client], restart="OnFailure", volumes=volumes, files=tuning.files.values())
    metadata = _metadata(tuning, tuning.clients, "client")
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            "completionMode": "Indexed",
            "completions": tuning.spec.clients,
            "parallelism": tuning.spec.clients,
            "backoffLimitPerIndex": 6,
            "template": {"metadata": {"labels": metadata["labels"]}, "spec": body},
        },
    }


def server_pod(gpulet: Gpulet, tuning: Tuning, *, host: Host, millicores: int) -> dict[str, Any]:
    """Measures candidates in the share of ``gpulet``."""
    cpu = share_cpu(gpulet.spec.compute_percent, millicores, host.cpu)
    server = container(
        "server",
        image=tuning.image,
        command=_command("tune-server", tuning.spec),
        cpu=cpu,
        memory=host.memory,
        holds_claim=True,
    )
    body = _pod_spec([server], restart="Always", node=gpulet.spec.device.node, claim=gpulet.metadata.name)
    return gpulet_pod(gpulet, body, labels=_labels(tuning, "server"))


def merge_pod(gpulet: Gpulet, tuning: Tuning, *, host: Host, millicores: int) -> dict[str, Any]:
    """Builds, checks, measures and stores the result, in the share the candidates were measured in."""
    cpu = share_cpu(gpulet.spec.compute_percent, millicores, host.cpu)
    merge = container(
        "merge",
        image=tuning.image,
        command=_command("tune-merge", tuning.spec),
        cpu=cpu,
        memory=host.memory,
        holds_claim=True,
    )
    volumes = [_mount_work(merge, tuning)]
    volumes += [mount_model(merge, name, file) for name, file in tuning.files.items()]
    body = _pod_spec(
        [merge],
        restart="Never",
        node=gpulet.spec.device.node,
        claim=gpulet.metadata.name,
        volumes=volumes,
        files=tuning.files.values(),
    )
    return gpulet_pod(gpulet, body, labels=_labels(tuning, "merge"))


def _pod_spec(containers: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
    """Its programs end at once: what was measured is on disk."""
    return pod_spec(containers, **options) | {"terminationGracePeriodSeconds": _GRACE_SECONDS}


def _command(program: str, spec: workload.TuneSpec) -> list[str]:
    return [program, spec.model_dump_json(by_alias=True, exclude_none=True)]


def _labels(tuning: Tuning, role: str) -> dict[str, str]:
    return {names.LABEL_JOB: tuning.name, names.LABEL_ROLE: role, names.LABEL_MANAGED_BY: names.MANAGED_BY}


def _metadata(tuning: Tuning, name: str, role: str) -> dict[str, Any]:
    return {
        "name": name,
        "namespace": tuning.namespace,
        "labels": _labels(tuning, role),
        "ownerReferences": [owner_reference(tuning.job, controller=True)],
    }


def _mount_work(target: dict[str, Any], tuning: Tuning) -> dict[str, Any]:
    target["volumeMounts"].append({"name": "work", "mountPath": workload.WORK_ROOT, "subPath": tuning.output_folder})
    return {"name": "work", "persistentVolumeClaim": {"claimName": tuning.output_claim}}
