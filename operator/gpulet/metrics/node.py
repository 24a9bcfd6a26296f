"""What an agent exports on /metrics. A series goes with its object (failure case J5)."""

from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 45.0)
"""The kubelet gives a call 45 s; a share whose daemon runs takes well under 0.2."""


@dataclass(frozen=True)
class GpuSeen:
    """One GPU at one look."""

    uuid: str
    product: str
    driver: str
    health: str
    withdrawn: str
    """Who else owns it; empty: nobody."""
    idle_instances: int = 0
    """MIG instances that are kept without a share."""


@dataclass(frozen=True)
class ShareSeen:
    """One share at one look."""

    namespace: str
    claim: str
    gpu: str
    device: str
    compute_percent: int
    memory_mib: int
    enforced: str
    """Status of its condition: True, False or Unknown."""
    reason: str


class NodeMetrics:
    """One registry per process; tests make their own."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self.calls = Histogram(
            "gpulet_node_call_duration_seconds",
            "Duration of the kubelet's calls, a claim each.",
            ["call", "outcome"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.restarts = Counter(
            "gpulet_node_mps_daemon_restarts_total",
            "MPS daemons that were found started again while they had shares.",
            ["gpu"],
            registry=self.registry,
        )
        self._gpus = self._gauge("gpulet_node_gpu_info", "1 for each GPU.", "gpu", "product", "driver")
        self._healthy = self._gauge("gpulet_node_gpu_healthy", "1 healthy, 0 degraded or lost.", "gpu", "health")
        self._withdrawn = self._gauge("gpulet_node_gpu_withdrawn", "1: another owner has the GPU.", "gpu", "reason")
        self._idle = self._gauge(
            "gpulet_node_mig_instances_idle", "MIG instances that no share uses; they give way at once.", "gpu"
        )
        place = ("namespace", "claim", "gpu", "device")
        self._percent = self._gauge("gpulet_node_share_compute_percent", "Prepared share of the device.", *place)
        self._memory = self._gauge("gpulet_node_share_memory_bytes", "Prepared memory.", *place)
        self._enforced = self._gauge(
            "gpulet_node_share_enforced", "1 enforced, 0 not; absent: no statement.", *place, "reason"
        )

    def _gauge(self, name: str, help_: str, *labels: str) -> Gauge:
        return Gauge(name, help_, labels, registry=self.registry)

    def gpus(self, seen: Iterable[GpuSeen]) -> None:
        """All GPUs of the node."""
        for gauge in (self._gpus, self._healthy, self._withdrawn, self._idle):
            gauge.clear()
        for gpu in seen:
            self._gpus.labels(gpu.uuid, gpu.product, gpu.driver).set(1)
            self._healthy.labels(gpu.uuid, gpu.health).set(float(gpu.health == "healthy"))
            self._idle.labels(gpu.uuid).set(gpu.idle_instances)
            if gpu.withdrawn:
                self._withdrawn.labels(gpu.uuid, gpu.withdrawn).set(1)

    def shares(self, seen: Iterable[ShareSeen]) -> None:
        """All prepared shares of the node."""
        for gauge in (self._percent, self._memory, self._enforced):
            gauge.clear()
        for share in seen:
            place = (share.namespace, share.claim, share.gpu, share.device)
            self._percent.labels(*place).set(share.compute_percent)
            self._memory.labels(*place).set(share.memory_mib * 2**20)
            if share.enforced != "Unknown":
                self._enforced.labels(*place, share.reason).set(float(share.enforced == "True"))

    def text(self) -> bytes:
        """The text exposition."""
        return generate_latest(self.registry)
