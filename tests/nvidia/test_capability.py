"""Which GPUs MPS can share, and among how many."""

import pytest

from gpulet.nvidia.capability import instance_clients, mps_capability

A100 = "NVIDIA-A100-SXM4-80GB"


@pytest.mark.case("A17")
@pytest.mark.parametrize("compute", [(3, 5), (6, 0), (6, 1)])
def test_before_volta_nothing_is_offered(compute: tuple[int, int]) -> None:
    """Case A17: a server of several users is accepted there, and then fails."""
    assert "older than Volta" in str(mps_capability("Tesla-P100", compute, (12, 4)).refusal)


@pytest.mark.case("B10")
def test_a_driver_without_memory_limits_is_refused_by_name() -> None:
    """Case B10: below the minimum the GPU is not offered, and the remedy is named."""
    assert mps_capability(A100, (8, 0), (11, 4)).refusal == (
        "the driver supports CUDA 11.4: memory limits of MPS need 11.5; install a newer driver"
    )
    assert mps_capability(A100, (8, 0), (11, 5)).refusal is None


@pytest.mark.case("A13")
@pytest.mark.parametrize(
    ("product", "cuda", "clients"),
    [
        (A100, (12, 9), 48),
        (A100, (13, 0), 48),
        (A100, (13, 1), 60),
        ("NVIDIA A16", (13, 1), 5),
        ("Tesla-T4", (12, 4), 21),
        ("NVIDIA-A30", (12, 4), 30),
        ("NVIDIA-A10", (12, 4), 48),
    ],
)
def test_clients_of_a_gpu(product: str, cuda: tuple[int, int], clients: int) -> None:
    """Case A13: documented maximum, or fewer where the field found fewer."""
    assert mps_capability(product, (8, 0), cuda).clients == clients


@pytest.mark.case("A13")
def test_clients_of_an_instance_follow_its_compute() -> None:
    assert [instance_clients(48, slices, 7) for slices in (1, 2, 3, 7)] == [6, 13, 20, 48]
    assert instance_clients(5, 1, 7) == 1


@pytest.mark.parametrize(
    ("driver", "namespaces"), [("615.10", True), ("620.1.2", True), ("595.71.05", False), ("", False)]
)
def test_namespaces_come_with_the_driver(driver: str, namespaces: bool) -> None:
    assert mps_capability(A100, (8, 0), (13, 4), driver).namespaces is namespaces
