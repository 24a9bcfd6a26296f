"""On which GPUs and devices a model may run at all, whatever else is there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from gpulet.model.demand import ModelId
from gpulet.model.device import Device, Gpu, Node, Toleration
from gpulet.model.plan import Problem, Refusal

_EFFECTS = ("NoSchedule", "NoExecute")


class Wish(Protocol):
    """What a demand and a request for room have in common."""

    @property
    def tolerations(self) -> tuple[Toleration, ...]: ...
    @property
    def nodes(self) -> tuple[str, ...] | None: ...


@dataclass(frozen=True)
class Rules:
    """Nodes and refusals, indexed once. Names are compared whole: ``gpu-1`` is not ``gpu-10``."""

    nodes: Mapping[str, Node]
    refused: Mapping[ModelId, frozenset[Device]]
    refused_everywhere: Mapping[ModelId, Refusal]

    @staticmethod
    def of(problem: Problem) -> Rules:
        refused: dict[ModelId, set[Device]] = defaultdict(set)
        everywhere: dict[ModelId, Refusal] = {}
        for refusal in sorted(problem.refusals, key=lambda r: (r.model, r.reason)):
            if refusal.device is None:
                everywhere.setdefault(refusal.model, refusal)
            else:
                refused[refusal.model].add(refusal.device)
        return Rules(
            {node.name: node for node in problem.nodes}, {m: frozenset(d) for m, d in refused.items()}, everywhere
        )

    def why_not(self, wish: Wish, gpu: Gpu) -> str | None:
        """Why nothing of this model can run on this GPU; None if something can."""
        node = self.nodes.get(gpu.node)
        if not gpu.schedulable:
            return "the GPU takes nothing new (tainted, foreign or in maintenance)"
        if node is None or not node.ready:
            return f"node {gpu.node} is not ready"
        if wish.nodes is not None and gpu.node not in wish.nodes:
            return f"its volumes cannot be mounted on node {gpu.node}"
        for taint in node.taints:
            if taint.effect in _EFFECTS and not any(t.tolerates(taint) for t in wish.tolerations):
                return f"node {gpu.node} has taint {taint.key}={taint.value}:{taint.effect}, which it does not tolerate"
        return None

    def refuses(self, model: ModelId, device: Device) -> bool:
        """Whether the scheduler or a quota has said no to this model on this device for the time being."""
        return device in self.refused.get(model, frozenset())
