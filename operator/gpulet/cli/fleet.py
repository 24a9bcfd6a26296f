"""A fleet of GPUs that is only thought of, for plans without a cluster."""

from gpulet.model.device import Gpu, Node
from gpulet.nvidia.tables import PRODUCTS

_GPUS_A_NODE = 8
# A node of such a fleet never is what limits a plan.
_PLENTY_MILLICORES = 10_000_000
_PLENTY_MIB = 10_000_000


class FleetError(ValueError):
    """The fleet cannot be understood; the message names the argument and the remedy."""


def fleet(texts: list[str]) -> tuple[tuple[Gpu, ...], tuple[Node, ...]]:
    """GPUs and nodes of ``PRODUCT=COUNT`` words, eight GPUs a node; raises FleetError.

    Each GPU offers what its product can do: products whose MIG mode needs a reset are uncut.
    """
    gpus: list[Gpu] = []
    for text in texts:
        name, _, count = text.partition("=")
        if name not in PRODUCTS:
            raise FleetError(f"--fleet {text}: unknown product {name}; known: {', '.join(sorted(PRODUCTS))}")
        if not count.isdigit() or not 1 <= int(count) <= 10_000:
            raise FleetError(f"--fleet {text}: write PRODUCT=COUNT with a count from 1 to 10000")
        product = PRODUCTS[name]
        gpus += [
            Gpu(
                node=f"{name.lower()}-{number // _GPUS_A_NODE}",
                uuid=f"GPU-{name.lower()}-{number}",
                product=name,
                memory_mib=product.memory_mib,
                clients=product.clients,
                compute_slices=product.compute_slices,
                placements=() if product.mig_needs_reset else product.placements,
            )
            for number in range(int(count))
        ]
    names = sorted({gpu.node for gpu in gpus})
    return tuple(gpus), tuple(Node(name, _PLENTY_MILLICORES, _PLENTY_MIB) for name in names)
