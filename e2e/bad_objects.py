"""A hundred objects that the API server has to refuse, each with the field its message must name."""

from copy import deepcopy
from typing import Any

API = "gpulet.dev/v1alpha1"
MODEL: dict[str, Any] = {
    "model": {"uri": "configmap://m/model.onnx", "format": "onnx"},
    "slo": {"latencyMilliseconds": 100},
}
JOB: dict[str, Any] = {"modelRef": {"name": "m"}, "output": {"uri": "pvc://store/m"}}
POINT: dict[str, Any] = {
    "product": "P",
    "computePercent": 40,
    "batch": 1,
    "latencyMicroseconds": {"mean": 10, "p50": 9, "p99": 12},
    "throughputPerSecond": 100,
    "memoryMebibytes": 512,
}
PROFILE: dict[str, Any] = {"points": [POINT]}
MEASURED: dict[str, Any] = {
    "modelRef": {"name": "m"},
    "measure": {"computePercents": [40], "batches": [1]},
}
GPULET: dict[str, Any] = {
    "device": {"node": "n", "gpu": "GPU-1"},
    "computePercent": 40,
    "memory": "1Gi",
    "clients": 1,
    "models": [{"name": "m", "batch": 1}],
}
LONG = "x" * 64
REMOVED = object()
_RESERVED = ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "NVIDIA_VISIBLE_DEVICES", "LD_PRELOAD", "GPULET_MEMORY_MIB")

Case = tuple[str, dict[str, Any], str, Any, str]
"""(kind, base spec, path of the change, value, what the message must name)."""


def _each(kind: str, base: dict[str, Any], path: str, *values: Any, names: str | None = None) -> list[Case]:
    return [(kind, base, path, value, names or path.split(".")[-1]) for value in values]


def _models() -> list[Case]:
    def bad(path: str, *values: Any, names: str | None = None) -> list[Case]:
        return _each("InferenceModel", MODEL, path, *values, names=names)

    return [
        *bad("slo.latencyMilliseconds", 0, -1, "100", "soon", None, True, 1e9),
        *bad("slo.percentile", 100, 0, -5, 101, 49, "99"),
        *bad("slo", REMOVED, {}, []),
        *bad("model", REMOVED, "m"),
        *bad(
            "model.uri",
            "",
            "m",
            "ftp://x/y",
            "configmap://m",
            "pvc://",
            "pvc://Store/x",
            "pvc://s//etc/x",
            "oci://",
            "s3:/x",
            5,
            "oci://a b",
        ),
        *bad("model.format", "", "ONNX", "pytorch", 1, REMOVED),
        *bad("model.digest", "sha256:0", names="digest"),
        *bad("load.requestsPerSecond", 0, -1, "4", 1e9),
        *bad("load.minRequestsPerSecond", 0, -3),
        *bad("load.maxRequestsPerSecond", 0),
        *bad("load", {"minRequestsPerSecond": 10, "maxRequestsPerSecond": 5}, names="minRequestsPerSecond"),
        *bad("load.qps", 5, names="qps"),
        *bad("sharing.mode", "mps", "", "TimeSlicing", 1),
        *bad("sharing.isolation", "none", "Pod"),
        *bad("sharing", {"mode": "Exclusive", "isolation": "Any"}, names="sharing"),
        *bad("products", "A100", [""], [LONG + "x"], [1]),
        *bad("priority", "high", 1.5, 10**7),
        *bad("profileRef.name", "", "Upper", LONG),
        *bad("tuning.trials", 0, -1, "many", 10**7),
        *bad("tuning.output", {}, {"uri": "s3://b/k"}, {"uri": "pvc://store/../m"}, names="output"),
        ("InferenceModel", MODEL | {"tuning": {"trials": 8}}, "model.format", "tensorrt", "tuning"),
        *bad("podTemplate.cpu", "0", "-1", "half", "1.5"),
        *bad("podTemplate.memory", "1G", "0Mi", "1.5Gi", "lots"),
        *bad(
            "podTemplate.environment",
            [{"name": "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "value": "100"}],
            names="environment",
        ),
        *bad("podTemplate.environment", [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}], names="environment"),
        *bad("podTemplate.environment", [{"name": "LD_PRELOAD", "value": "x.so"}], names="environment"),
        *bad("podTemplate.environment", [{"name": "1X"}], [{}], names="environment"),
        *bad("podTemplate.labels", {"gpulet.dev/model": "other"}, names="labels"),
        *bad("podTemplate.annotations", {"gpulet.dev/revision": "x"}, names="annotations"),
        *bad("podTemplate.hostNetwork", True, names="hostNetwork"),
        *bad("podTemplate.resources", {"limits": {"nvidia.com.gpu": 1}}, names="resources"),
        *bad("podTemplate.tolerations", [{"operator": "Maybe"}], names="operator"),
        *bad("replicas", 3, names="replicas"),
    ]


def _jobs() -> list[Case]:
    def bad(path: str, *values: Any, names: str | None = None) -> list[Case]:
        return _each("TuningJob", JOB, path, *values, names=names)

    return [
        *bad("modelRef", REMOVED, names="modelRef"),
        *bad("model", {"uri": "configmap://m/model.onnx", "format": "onnx"}, names="modelRef"),
        *bad("trials", 0, -1, "all"),
        *bad("batch", 0, -1, "auto", 1.5, ""),
        *bad("computePercent", 0, 101, -1, "auto", "50"),
        *bad("parallelism.clients", 0, "many"),
        *bad("parallelism.servers", 0, -2),
        *bad("deadlineSeconds", 0, -1, "1h"),
        *bad("suspend", "yes"),
        *bad("output", REMOVED, {}),
        *bad("output.uri", "", "s3://b/k", "pvc://store", "store/m", "pvc://store//m"),
        *bad("schedule", "daily", names="schedule"),
    ]


def _profiles() -> list[Case]:
    def bad(base: dict[str, Any], path: str, *values: Any, names: str | None = None) -> list[Case]:
        return _each("ModelProfile", base, path, *values, names=names)

    def point(**changes: Any) -> list[dict[str, Any]]:
        return [POINT | changes]

    return [
        *bad(PROFILE, "points", [], REMOVED, names="points"),
        *bad(PROFILE, "modelRef", {"name": "m"}, names="points"),
        *bad(PROFILE, "points", point(computePercent=0), point(computePercent=101), names="computePercent"),
        *bad(PROFILE, "points", point(batch=0), names="batch"),
        *bad(PROFILE, "points", point(throughputPerSecond=0), names="throughputPerSecond"),
        *bad(PROFILE, "points", point(memoryMebibytes=0), names="memoryMebibytes"),
        *bad(PROFILE, "points", point(latencyMicroseconds={"mean": 0, "p50": 1, "p99": 1}), names="mean"),
        *bad(PROFILE, "points", point(latencyMicroseconds={"mean": 1, "p50": 1}), names="p99"),
        *bad(MEASURED, "measure", REMOVED, names="measure"),
        *bad(MEASURED, "measure.computePercents", [], [0], [150], "50"),
        *bad(MEASURED, "measure.batches", [], [0]),
        *bad(MEASURED, "measure.secondsPerPoint", 0, -1, 10**4),
    ]


def _gpulets() -> list[Case]:
    def bad(path: str, *values: Any, names: str | None = None) -> list[Case]:
        return _each("Gpulet", GPULET, path, *values, names=names)

    return [
        *bad("computePercent", 0, 101, -1, "50", 12.5, REMOVED),
        *bad("memory", "0Gi", "1.5Gi", "100", "10G", 5),
        *bad("clients", 0, -1, 65),
        *bad("device", REMOVED, {"node": "n"}, {"node": "", "gpu": "GPU-1"}),
        *bad(
            "device.mig",
            {"profile": "3g.40gb"},
            {"profile": "", "start": 0},
            {"profile": "3g.40gb", "start": -1},
            names="mig",
        ),
        *bad("models", REMOVED, [], names="models"),
        *bad("models", [{"name": "m", "batch": 1}, {"name": "n", "batch": 1}], names="one model"),
        *bad("models", [{"name": "m", "batch": 0}], [{"name": "m", "batch": 1, "instances": 0}], names="models"),
        *bad("tuning", {"job": "j", "role": "server"}, names="tuning"),
        *bad("profiling", {"profile": "p", "batches": [1]}, names="profiling"),
    ]


def _names() -> list[Case]:
    return [
        (kind, base, "/metadata/name", "n" * 64, "name")
        for kind, base in (("InferenceModel", MODEL), ("TuningJob", JOB), ("ModelProfile", PROFILE))
    ]


def cases() -> list[tuple[str, dict[str, Any], str]]:
    """(readable id, manifest, what the message must name)."""
    result = []
    for number, (kind, base, path, value, names) in enumerate(
        [*_models(), *_jobs(), *_profiles(), *_gpulets(), *_names()]
    ):
        manifest = {
            "apiVersion": API,
            "kind": kind,
            "metadata": {"name": f"bad-{number}", "namespace": "default"},
            "spec": deepcopy(base),
        }
        if path == "/metadata/name":
            manifest["metadata"]["name"] = value
        else:
            _put(manifest["spec"], path.split("."), value)
        shown = "removed" if value is REMOVED else repr(value)[:40]
        result.append((f"{number}-{kind}-{path}={shown}", manifest, names))
    return result


def _put(spec: dict[str, Any], path: list[str], value: Any) -> None:
    for key in path[:-1]:
        spec = spec.setdefault(key, {})
    if value is REMOVED:
        spec.pop(path[-1], None)
    else:
        spec[path[-1]] = value
