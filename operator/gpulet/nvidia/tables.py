"""GPU products that can be simulated, with their MIG placements.

Slice grids from NVIDIA's MIG user guide ("Supported MIG profiles"), memory as ``nvidia-smi mig -lgip`` lists it (GiB,
here MiB). The ``+me`` variants differ from their plain profile in the media engine alone, which no share of ours
asks for: they are left out. Real GPUs never come from this table: NVML is asked.
"""

from dataclasses import dataclass

from gpulet.model.device import Placement

_CLIENTS = 48
"""MPS clients of a Volta or later GPU up to CUDA 13.0."""
_COMPUTE_SLICES = 7
_MEMORY_SLICES = 8
# Shape, starts, memory slices, compute slices: the same on A100 and H100.
_GRID: tuple[tuple[str, tuple[int, ...], int, int], ...] = (
    ("1g", (0, 1, 2, 3, 4, 5, 6), 1, 1),
    ("1g double", (0, 2, 4, 6), 2, 1),
    ("2g", (0, 2, 4), 2, 2),
    ("3g", (0, 4), 4, 3),
    ("4g", (0,), 4, 4),
    ("7g", (0,), 8, 7),
)
_NAMES_80GB = {
    "1g": "1g.10gb",
    "1g double": "1g.20gb",
    "2g": "2g.20gb",
    "3g": "3g.40gb",
    "4g": "4g.40gb",
    "7g": "7g.80gb",
}


@dataclass(frozen=True)
class Product:
    """A GPU product: its size and what MIG can cut it into."""

    name: str
    architecture: str
    memory_mib: int
    placements: tuple[Placement, ...]
    mig_needs_reset: bool
    """MIG mode changes only by a reset without clients: the GPU offers what its current mode allows, not both."""
    clients: int = _CLIENTS
    compute_slices: int = _COMPUTE_SLICES
    memory_slices: int = _MEMORY_SLICES


def _placements(names: dict[str, str], memory_mib: dict[str, int]) -> tuple[Placement, ...]:
    return tuple(
        # MPS takes fewer clients in an instance, in proportion to its compute (rounded down: too few is safe).
        Placement(names[shape], start, size, compute, memory_mib[shape], _CLIENTS * compute // _COMPUTE_SLICES)
        for shape, starts, size, compute in _GRID
        for start in starts
    )


_A100_MIB = {"1g": 9728, "1g double": 19968, "2g": 19968, "3g": 40192, "4g": 40192, "7g": 80640}
_H100_MIB = {"1g": 9984, "1g double": 20096, "2g": 20096, "3g": 40448, "4g": 40448, "7g": 81152}

PRODUCTS = {
    product.name: product
    for product in (
        Product("NVIDIA-A100-SXM4-80GB", "Ampere", 81920, _placements(_NAMES_80GB, _A100_MIB), mig_needs_reset=True),
        Product("NVIDIA-H100-80GB-HBM3", "Hopper", 81559, _placements(_NAMES_80GB, _H100_MIB), mig_needs_reset=False),
    )
}
