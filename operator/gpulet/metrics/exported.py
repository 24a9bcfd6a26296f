"""What Gpulet itself exports on /metrics. A series goes with its object (failure case J5)."""

from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest


class Exported:
    """One registry per process; tests make their own."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self.pass_seconds = Histogram(
            "gpulet_pass_duration_seconds", "Duration of a pass of the loop.", registry=self.registry
        )
        self.gpus = Gauge("gpulet_gpus_used", "GPUs that hold a serving share in the plan.", registry=self.registry)
        self.lower_bound = Gauge(
            "gpulet_gpus_lower_bound",
            "No plan uses fewer GPUs.",
            ["kind"],
            registry=self.registry,
        )
        self.percent = Gauge(
            "gpulet_compute_percent",
            "Planned share of a device.",
            ["namespace", "gpulet", "node", "gpu"],
            registry=self.registry,
        )
        self.objective_met = Gauge(
            "gpulet_objective_met",
            "1 met, 0 not; absent: no statement.",
            ["namespace", "model"],
            registry=self.registry,
        )
        self._percents: set[tuple[str, ...]] = set()
        self._objectives: set[tuple[str, ...]] = set()

    def plan(self, *, gpus: int, lower_bound: int, kind: str) -> None:
        """The plan in force."""
        self.gpus.set(gpus)
        self.lower_bound.clear()
        self.lower_bound.labels(kind).set(lower_bound)

    def shares(self, percents: dict[tuple[str, str, str, str], int]) -> None:
        """All shares that exist, by (namespace, gpulet, node, gpu)."""
        for gone in self._percents - percents.keys():
            self.percent.remove(*gone)
        for labels, value in percents.items():
            self.percent.labels(*labels).set(value)
        self._percents = set(percents)

    def objectives(self, met: dict[tuple[str, str], bool]) -> None:
        """Models about which there is a statement, by (namespace, name)."""
        for gone in self._objectives - met.keys():
            self.objective_met.remove(*gone)
        for labels, value in met.items():
            self.objective_met.labels(*labels).set(float(value))
        self._objectives = set(met)

    def text(self) -> bytes:
        """The text exposition."""
        return generate_latest(self.registry)
