"""What the serving program knows of itself, and what it therefore says."""

import os
import threading
from dataclasses import dataclass, field

from gpulet.api.workload import ModelReport, ServeReport
from gpulet.serving.repository import Prepared
from gpulet.serving.triton import Ports, Triton, version
from gpulet.v2.client import V2Client

# Shorter than the kubelet's patience with a probe.
_ANSWER_S = 3.0


@dataclass
class Server:
    """The state of one serving program: written by its main thread, read by the threads that answer."""

    ports: Ports
    prepared: list[Prepared] = field(default_factory=list)
    triton: Triton | None = None
    warm: bool = False
    stopping: threading.Event = field(default_factory=threading.Event)
    error: str | None = None
    reason: str | None = None
    """CamelCase, of the error."""

    def report(self) -> ServeReport:
        """What is served and how it is, as Triton says now."""
        percent = os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
        serving = self._serving()
        return ServeReport(
            models=[
                ModelReport(
                    name=p.model.name,
                    digest=p.digest,
                    # A tuned artifact without its model's file beside it tells nothing of that file.
                    source_digest=p.source.digest() if p.model.source or p.model.format != "tvm" else None,
                    ready=p.model.name in serving,
                )
                for p in self.prepared
            ],
            runtime="triton",
            runtime_version=version(),
            compute_percent=round(float(percent)) if percent else None,
            error=self.error,
            reason=self.reason,
        )

    def ready(self) -> bool:
        """Every model is served (asked, not remembered) and warm, and nobody has asked us to go."""
        return not self.stopping.is_set() and bool(self.prepared) and len(self._serving()) == len(self.prepared)

    def healthy(self) -> bool:
        """Triton answers; while it starts or ends, that is not asked of it."""
        if not self.warm or self.stopping.is_set():
            return True
        with V2Client(self.ports.http, timeout_s=_ANSWER_S) as client:
            return client.live()

    def _serving(self) -> set[str]:
        if not self.warm or self.error is not None:
            return set()
        with V2Client(self.ports.http, timeout_s=_ANSWER_S) as client:
            return {p.model.name for p in self.prepared if client.model_ready(p.model.name)}
