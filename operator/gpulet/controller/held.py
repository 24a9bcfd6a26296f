"""The last complete inventory, held over the seconds in which a node's slices are rewritten or gone."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpulet.controller.inventory import current_pools
from gpulet.controller.world import Key, Raw, key_of

HOLD_S = 60.0
"""A kubelet that restarts takes its plugins' slices away and gets them back in some ten seconds."""


@dataclass
class HeldInventory:
    """Pools by name. Without it a restarted kubelet would look like a node that lost its GPUs, and models that serve
    there would be planned elsewhere. A pool that is still there but has no device, or whose device is tainted, is an
    answer of the agent and holds at once; so does a Node that is gone.
    """

    hold_s: float = HOLD_S
    _pools: dict[str, tuple[float, list[Raw]]] = field(default_factory=dict)

    def observe(self, slices: Mapping[Key, Raw], nodes: Mapping[Key, Raw], *, now_s: float) -> dict[Key, Raw]:
        """The slices to plan with: complete pools as they are, and those that have just gone as they were last."""
        for pool, found in current_pools(slices.values()).items():
            self._pools[pool] = (now_s, found)
        self._pools = {
            pool: (seen_s, found)
            for pool, (seen_s, found) in self._pools.items()
            if now_s - seen_s <= self.hold_s and ("", found[0]["spec"].get("nodeName", "")) in nodes
        }
        return {key_of(raw): raw for _, found in self._pools.values() for raw in found}
