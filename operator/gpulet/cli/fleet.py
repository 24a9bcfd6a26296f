"""A fleet of GPUs that is only thought of, for plans without a cluster."""

from collections import Counter
from collections.abc import Iterable

from gpulet.model.device import Gpu, Node
from gpulet.nvidia.tables import PRODUCTS

_GPUS_A_NODE = 8
_MOST = 10_000
# A node of such a fleet never is what limits a plan.
_PLENTY_MILLICORES = 10_000_000
_PLENTY_MIB = 10_000_000
_CUT = ":mig"


class FleetError(ValueError):
    """The fleet cannot be understood; the message names the argument and the remedy."""


def fleet(texts: Iterable[str]) -> tuple[tuple[Gpu, ...], tuple[Node, ...]]:
    """GPUs and nodes of ``PRODUCT=COUNT`` words, eight GPUs a node; raises FleetError.

    Each GPU offers what its product can do. Where MIG mode changes only by a reset, it is off; ``PRODUCT:mig=COUNT``
    has it on.
    """
    counts: Counter[str] = Counter()
    for text in texts:
        name, _, count = text.partition("=")
        product = name.removesuffix(_CUT)
        if product not in PRODUCTS:
            raise FleetError(f"--fleet {text}: unknown product {product}; known: {', '.join(sorted(PRODUCTS))}")
        if name != product and not PRODUCTS[product].mig_needs_reset:
            raise FleetError(f"--fleet {text}: {product} is cut as the plan needs it: write {product}=COUNT")
        if not count.isdecimal() or not 1 <= int(count) <= _MOST:
            raise FleetError(f"--fleet {text}: write PRODUCT=COUNT with a count from 1 to {_MOST}")
        counts[name] += int(count)
    gpus = tuple(_gpu(name, number) for name in counts for number in range(counts[name]))
    return gpus, roomy_nodes(gpu.node for gpu in gpus)


def _gpu(name: str, number: int) -> Gpu:
    product = PRODUCTS[name.removesuffix(_CUT)]
    cut, label = name.endswith(_CUT), name.lower().replace(":", "-")
    return Gpu(
        node=f"{label}-{number // _GPUS_A_NODE}",
        uuid=f"GPU-{label}-{number}",
        product=product.name,
        memory_mib=product.memory_mib,
        clients=product.clients,
        compute_slices=product.compute_slices,
        whole=not cut,
        placements=() if product.mig_needs_reset and not cut else product.placements,
    )


def roomy_nodes(names: Iterable[str]) -> tuple[Node, ...]:
    """Nodes that nobody described: with more CPU and memory than any plan needs."""
    return tuple(Node(name, _PLENTY_MILLICORES, _PLENTY_MIB) for name in sorted(set(names)))
