"""The kinds Gpulet reads or writes, and where the API server keeps them."""

from dataclasses import dataclass
from typing import Any

from gpulet.api import names


@dataclass(frozen=True)
class Kind:
    """A resource of the API. ``group`` is empty for the core group."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None) -> str:
        """The URL path of a collection or an object. Without a namespace: across all of them."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        parts = [root]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        if name is not None:
            if self.namespaced and not namespace:
                raise ValueError(f"{self.kind} {name}: namespace missing")
            parts.append(name)
        return "/".join(parts)


INFERENCE_MODEL = Kind(names.GROUP, names.VERSION, "inferencemodels", "InferenceModel")
TUNING_JOB = Kind(names.GROUP, names.VERSION, "tuningjobs", "TuningJob")
MODEL_PROFILE = Kind(names.GROUP, names.VERSION, "modelprofiles", "ModelProfile")
GPULET = Kind(names.GROUP, names.VERSION, "gpulets", "Gpulet")
POD = Kind("", "v1", "pods", "Pod")
NODE = Kind("", "v1", "nodes", "Node", namespaced=False)
NAMESPACE = Kind("", "v1", "namespaces", "Namespace", namespaced=False)
SERVICE = Kind("", "v1", "services", "Service")
CONFIG_MAP = Kind("", "v1", "configmaps", "ConfigMap")
PERSISTENT_VOLUME = Kind("", "v1", "persistentvolumes", "PersistentVolume", namespaced=False)
PERSISTENT_VOLUME_CLAIM = Kind("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
EVENT = Kind("events.k8s.io", "v1", "events", "Event")
JOB = Kind("batch", "v1", "jobs", "Job")
NETWORK_POLICY = Kind("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
LEASE = Kind("coordination.k8s.io", "v1", "leases", "Lease")
RESOURCE_CLAIM = Kind("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim")
RESOURCE_SLICE = Kind("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", namespaced=False)
DEVICE_CLASS = Kind("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", namespaced=False)
DEPLOYMENT = Kind("apps", "v1", "deployments", "Deployment")
DAEMON_SET = Kind("apps", "v1", "daemonsets", "DaemonSet")
CUSTOM_RESOURCE_DEFINITION = Kind(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)

ALL = tuple(value for value in list(globals().values()) if isinstance(value, Kind))
_BY_NAME = {(kind.api_version, kind.kind): kind for kind in ALL}
_BY_KIND = {kind.kind: kind for kind in ALL}


def kind_of(manifest: dict[str, Any]) -> Kind:
    """The kind of a manifest; raises KeyError for one that Gpulet does not handle."""
    return _BY_NAME[manifest["apiVersion"], manifest["kind"]]


def kind_named(kind: str) -> Kind:
    """The kind with this name; names are unique among those that Gpulet handles."""
    return _BY_KIND[kind]
