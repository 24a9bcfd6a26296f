"""Simulated GPUs behave as the node code must expect of real ones."""

import json
from pathlib import Path

import pytest

from gpulet.model.device import Placement
from gpulet.nvidia.simulated import SimulatedSource, gpu_uuid
from gpulet.nvidia.tables import PRODUCTS

A100, H100 = "NVIDIA-A100-SXM4-80GB", "NVIDIA-H100-80GB-HBM3"


def _source(folder: Path, gpus: list[tuple[str, bool, int]] | None = None) -> SimulatedSource:
    return SimulatedSource("node1", gpus or [(H100, True, 500)], folder / "state.json", folder / "faults.json")


def _placement(source: SimulatedSource, profile: str, start: int) -> Placement:
    return next(p for p in source.gpus()[0].placements if (p.profile, p.start) == (profile, start))


@pytest.mark.parametrize("product", [A100, H100])
def test_placements_are_those_of_the_grid(product: str) -> None:
    """Starts and sizes of NVIDIA's table; no placement leaves the GPU's slices or its memory."""
    table = PRODUCTS[product]
    starts: dict[str, list[int]] = {}
    for placement in table.placements:
        starts.setdefault(placement.profile, []).append(placement.start)
        assert placement.start + placement.size <= table.memory_slices
        assert placement.memory_mib < table.memory_mib
        assert placement.clients >= 1
    assert starts == {
        "1g.10gb": [0, 1, 2, 3, 4, 5, 6],
        "1g.20gb": [0, 2, 4, 6],
        "2g.20gb": [0, 2, 4],
        "3g.40gb": [0, 4],
        "4g.40gb": [0],
        "7g.80gb": [0],
    }


def test_ampere_offers_what_its_mode_allows_and_hopper_both(tmp_path: Path) -> None:
    gpus = _source(tmp_path, [(A100, True, 0), (A100, False, 0), (H100, True, 0), (H100, False, 0)]).gpus()
    assert [(g.whole, bool(g.placements)) for g in gpus] == [(False, True), (True, False), (True, True), (True, False)]


def test_uuids_are_the_same_at_every_start_and_differ_by_node_and_index() -> None:
    assert gpu_uuid("node-1", 0) == gpu_uuid("node-1", 0)
    assert len({gpu_uuid(n, i) for n in ("node-1", "node-10") for i in (0, 1, 10)}) == 6


def test_unknown_product_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=H100):
        _source(tmp_path, [("NVIDIA-A1000", True, 0)])


def test_state_of_an_older_agent_is_understood(tmp_path: Path) -> None:
    """It knew no MIG mode; its instances live on."""
    source = _source(tmp_path)
    (gpu,) = source.gpus()
    made = source.create_instance(gpu.uuid, _placement(source, "3g.40gb", 4))
    state = json.loads((tmp_path / "state.json").read_text())
    del state["gpus"][gpu.uuid]["mig"]
    (tmp_path / "state.json").write_text(json.dumps(state))
    assert _source(tmp_path).instances(gpu.uuid) == (made,)
    assert _source(tmp_path).create_instance(gpu.uuid, _placement(source, "3g.40gb", 4)) == made
