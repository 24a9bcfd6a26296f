"""A cluster in memory for tests of pure decisions: objects as dicts, and the few things others do to them.

It stands for the API server, the scheduler and the kubelet only as far as a pass can see them; what they really do
is tested on the real ones in e2e/.
"""

import copy
import itertools
from typing import Any

from gpulet.api.workload import ServeReport
from gpulet.controller.actions import Action, Apply, Delete, Keep, Leave, Tell, Unroute, WriteStatus
from gpulet.controller.observations import Observations
from gpulet.controller.read import read_world
from gpulet.controller.world import Key, World
from gpulet.status.figures import settle

KINDS = (
    "InferenceModel",
    "TuningJob",
    "ModelProfile",
    "Gpulet",
    "ResourceClaim",
    "Pod",
    "Service",
    "Job",
    "NetworkPolicy",
    "Node",
    "ResourceSlice",
    "PersistentVolumeClaim",
    "PersistentVolume",
)
A100 = "NVIDIA-A100-SXM4-80GB"


class Cluster:
    def __init__(self) -> None:
        self.objects: dict[str, dict[Key, dict[str, Any]]] = {kind: {} for kind in KINDS}
        self.events: list[Tell] = []
        self.writes: list[str] = []
        self.refusals: list[Any] = []
        """What a quota said, once for each pass."""
        self.reports: dict[Key, ServeReport] = {}
        """What serving programs say, by pod."""
        self.names_taken: dict[Key, str] = {}
        self.refused_children: dict[tuple[str, Key], str] = {}
        self.seconds_since_write = 3600.0
        """Of any status."""
        self.observations = Observations()
        """What the scraper has seen, beside the reports."""
        self._uid = itertools.count(1)

    def world(self) -> World:
        return read_world(copy.deepcopy(self.objects))

    def add(self, raw: dict[str, Any]) -> dict[str, Any]:
        metadata = raw.setdefault("metadata", {})
        metadata.setdefault("uid", f"uid-{next(self._uid)}")
        metadata.setdefault("generation", 1)
        self.objects[raw["kind"]][metadata.get("namespace", ""), metadata["name"]] = raw
        return raw

    def carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Apply(manifest):
                    self._apply(manifest)
                case Delete(kind, key):
                    if self.objects[kind].pop(key, None) is not None:
                        self.writes.append(f"delete {kind} {key[1]}")
                    self._collect_garbage()
                case Unroute() | Leave() | Keep():
                    self._relabel(action)
                case WriteStatus(kind, key, status):
                    previous = self.objects[kind].get(key, {}).get("status", {})
                    status = settle(previous, status, seconds_since_write=self.seconds_since_write)
                    if key in self.objects[kind] and previous != status:
                        self.objects[kind][key]["status"] = status
                        self.writes.append(f"status {kind} {key[1]}")
                case Tell():
                    self.events.append(action)

    def _relabel(self, action: Unroute | Leave | Keep) -> None:
        pod = self.objects["Pod"].get(action.key, {"metadata": {"labels": {}}})["metadata"]["labels"]
        gpulet = self.objects["Gpulet"][action.key]["metadata"]["labels"]
        match action:
            case Unroute():
                pod["gpulet.dev/routed"] = "false"
            case Leave():
                gpulet["gpulet.dev/leaving"] = "true"
            case Keep(_, stays):
                pod["gpulet.dev/routed"] = "true"
                if stays:
                    gpulet.pop("gpulet.dev/leaving", None)
        self.writes.append(f"{type(action).__name__.lower()} {action.key[1]}")

    def _apply(self, manifest: dict[str, Any]) -> None:
        key = (manifest["metadata"]["namespace"], manifest["metadata"]["name"])
        old = self.objects[manifest["kind"]].get(key)
        if old is None:
            self.add(copy.deepcopy(manifest))
            if manifest["kind"] == "Service":
                self.objects["Service"][key]["spec"]["clusterIP"] = "10.0.0.1"
        elif old.get("spec") == manifest.get("spec") or manifest["kind"] == "Service":
            return
        else:
            old["spec"] = copy.deepcopy(manifest["spec"])
            old["metadata"]["generation"] += 1
        self.writes.append(f"apply {manifest['kind']} {key[1]}")

    def _collect_garbage(self) -> None:
        uids = {o["metadata"]["uid"] for kind in self.objects.values() for o in kind.values()}
        for kind in self.objects.values():
            for key in [k for k, o in kind.items() if _orphan(o, uids)]:
                del kind[key]

    def kubelet(self, *, ready: bool = True) -> None:
        """Every pod without a verdict is bound and becomes ready."""
        for pod in self.objects["Pod"].values():
            status = pod.setdefault("status", {})
            if status.get("phase") in ("Failed", "Succeeded") or status.get("conditions"):
                continue
            pod["spec"]["nodeName"] = "node1"
            if ready:
                status |= {"phase": "Running", "podIP": "10.0.1.1", "conditions": [{"type": "Ready", "status": "True"}]}

    def end_pod(self, key: Key, container: str, message: str, *, code: int = 0) -> None:
        state = {"terminated": {"exitCode": code, "message": message}}
        self.objects["Pod"][key]["status"] = {
            "phase": "Succeeded" if code == 0 else "Failed",
            "containerStatuses": [{"name": container, "state": state}],
        }


def _orphan(raw: dict[str, Any], uids: set[str]) -> bool:
    owners = raw["metadata"].get("ownerReferences") or []
    return bool(owners) and not any(o["uid"] in uids for o in owners)


def node(name: str, *, cpu: str = "2", memory: str = "24Gi") -> dict[str, Any]:
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": {},
        "status": {
            "allocatable": {"cpu": cpu, "memory": memory, "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def whole_gpu_slice(node_name: str, index: int, *, millicores: int = 500, product: str = A100) -> dict[str, Any]:
    """A pool of one whole GPU."""
    uuid = f"GPU-{node_name}-{index}"
    attributes = {
        "type": {"string": "gpu"},
        "uuid": {"string": uuid},
        "index": {"int": index},
        "product": {"string": product},
        "profile": {"string": "full"},
        "placementStart": {"int": 0},
        "placementSize": {"int": 8},
        "computeSlices": {"int": 7},
        "millicores": {"int": millicores},
        "source": {"string": "simulated"},
    }
    capacity = {"computePercent": {"value": "100"}, "memory": {"value": "80Gi"}, "clients": {"value": "48"}}
    return {
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node_name}-{index}"},
        "spec": {
            "driver": "gpulet.dev",
            "nodeName": node_name,
            "pool": {"name": f"{node_name}/{uuid.lower()}", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": f"gpu-{index}", "attributes": attributes, "capacity": capacity}],
        },
    }


def inference_model(
    name: str, *, namespace: str = "vision", rate: float = 10, slo_ms: float = 100, **spec: Any
) -> dict[str, Any]:
    return {
        "apiVersion": "gpulet.dev/v1alpha1",
        "kind": "InferenceModel",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "model": {"uri": f"configmap://{name}/model.onnx", "format": "onnx"},
            "slo": {"latencyMilliseconds": slo_ms},
            "load": {"requestsPerSecond": rate},
        }
        | spec,
    }


def point(percent: int, batch: int, *, ms: float) -> dict[str, Any]:
    return {
        "product": A100,
        "computePercent": percent,
        "batch": batch,
        "latencyMicroseconds": {"mean": ms * 1000, "p50": ms * 1000, "p99": ms * 1100},
        "throughputPerSecond": batch * 1000 / ms,
        "memoryMebibytes": 2048,
    }


def given_profile(name: str, *, namespace: str = "vision", ms_at_100: float = 5) -> dict[str, Any]:
    """Latency proportional to batch and to 1/share, as on a simulated GPU."""
    points = [point(p, b, ms=ms_at_100 * b * 100 / p) for p in (20, 40, 60, 80, 100) for b in (1, 2, 4)]
    return {
        "apiVersion": "gpulet.dev/v1alpha1",
        "kind": "ModelProfile",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"points": points},
    }


def of_nodes(count: int) -> Cluster:
    """``node1``, ``node2`` and so on, each with one A100."""
    made = Cluster()
    for number in range(1, count + 1):
        made.add(node(f"node{number}"))
        made.add(whole_gpu_slice(f"node{number}", 0))
    return made
