"""What MPS can do on a GPU with a driver: by compute capability and CUDA version. Pure.

Sources: NVIDIA's MPS documentation ("When to use MPS", appendix on environment variables), and reports from the field
for products that take fewer clients than documented (NVIDIA/k8s-device-plugin#1118).
"""

from dataclasses import dataclass

_VOLTA = (7, 0)
"""Limits, and servers of several users, do not exist before."""
_MEMORY_LIMITS_CUDA = (11, 5)
_SIXTY_CLIENTS_CUDA = (13, 1)
_NAMESPACES_DRIVER = 615
_FEWER_CLIENTS = {"A16": 5, "T4": 21, "A30": 30}
"""Clients after which devices were reported busy."""


@dataclass(frozen=True)
class MpsCapability:
    """What may be offered."""

    refusal: str | None
    """Why the GPU is not offered at all; None: it is."""
    clients: int = 0
    """MPS clients of the whole GPU."""
    namespaces: bool = False
    """MPS v3: the daemon, not the client's environment, holds the limits."""


def mps_capability(product: str, compute: tuple[int, int], cuda: tuple[int, int], driver: str = "") -> MpsCapability:
    """``product`` as NVML names it; ``compute``: the GPU's compute capability; ``cuda``: the highest that the driver
    supports; ``driver``: its version, such as ``570.86.15``."""
    if compute < _VOLTA:
        return MpsCapability(
            f"compute capability {_dotted(compute)} is older than Volta (7.0): MPS cannot limit clients"
        )
    if cuda < _MEMORY_LIMITS_CUDA:
        return MpsCapability(
            f"the driver supports CUDA {_dotted(cuda)}: memory limits of MPS need 11.5; install a newer driver"
        )
    documented = 60 if cuda >= _SIXTY_CLIENTS_CUDA else 48
    words = product.replace("-", " ").split()
    clients = min([documented, *(most for name, most in _FEWER_CLIENTS.items() if name in words)])
    major = driver.split(".")[0]
    return MpsCapability(None, clients, major.isdigit() and int(major) >= _NAMESPACES_DRIVER)


def instance_clients(whole: int, compute_slices: int, of: int) -> int:
    """Clients of a MIG instance: in proportion to its compute, rounded down (too few is safe), at least one."""
    return max(1, whole * compute_slices // of)


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
