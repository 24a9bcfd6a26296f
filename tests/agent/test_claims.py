"""What an allocated claim says, what is refused, what the container gets: pure."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulet.agent import cdi
from gpulet.agent.checks import out_of_range, refusal
from gpulet.agent.claims import ClaimRecord, ClaimRefusedError, ClaimStore, quantity_mib, record_of
from gpulet.agent.daemons import DaemonFolders
from gpulet.agent.devices import NodeDevice, inventory
from gpulet.nvidia.simulated import SimulatedSource


@pytest.fixture
def read(rig: Any) -> Any:
    """A claim's record."""
    return lambda claim, uid="c1": record_of(claim, uid, "boot", rig.shares().devices())


@pytest.mark.parametrize(
    ("quantity", "mib"),
    [("10Gi", 10240), ("81559Mi", 81559), ("1Ti", 1048576), ("2048Ki", 2), ("1048576", 1), ("64Mi", 64)],
)
def test_quantities_are_whole_mib(quantity: str, mib: int) -> None:
    assert quantity_mib(quantity) == mib


@pytest.mark.case("G1", "G3", "D11")
@pytest.mark.parametrize("quantity", ["1.5G", "1.5Gi", "10G", "0", "0Mi", "-1Gi", "1500000", "", "1e3", "NaN", " 1Gi"])
def test_quantities_that_are_not_are_refused(quantity: str) -> None:
    """Cases G1, G3, D11: an error, never rounding, never "no limit"."""
    with pytest.raises(ValueError, match="memory"):
        quantity_mib(quantity)


def test_a_claim_is_read_from_what_the_scheduler_accounted(rig: Any, read: Any) -> None:
    record = read(rig.claim(device="gpu-0-mig-3g-40gb-4", percent=50, memory="20Gi", clients=2, isolation="Any"))
    assert (record.profile, record.start, record.gpu) == ("3g.40gb", 4, rig.source.gpus()[0].uuid)
    assert (record.compute_percent, record.memory_mib, record.clients) == (50, 20480, 2)
    assert (record.isolation, record.purpose, record.share_id) == ("Any", "serve", "share-c1")


def test_without_our_configuration_a_share_is_for_its_namespace(rig: Any, read: Any) -> None:
    claim = rig.claim()
    del claim["status"]["allocation"]["devices"]["config"]
    assert (read(claim).isolation, read(claim).purpose) == ("Namespace", "serve")


def test_the_claims_configuration_comes_after_its_classes_and_foreign_ones_are_ignored(rig: Any, read: Any) -> None:
    claim = rig.claim(isolation="None")
    config = claim["status"]["allocation"]["devices"]["config"]
    parameters = {"kind": "ShareConfig", "isolation": "Any"}
    config.insert(0, {"source": "FromClass", "opaque": {"driver": "gpulet.dev", "parameters": parameters}})
    config.append(
        {"source": "FromClaim", "requests": ["other"], "opaque": {"driver": "gpulet.dev", "parameters": parameters}}
    )
    config.append({"source": "FromClaim", "opaque": {"driver": "gpu.nvidia.com", "parameters": {"x": 1}}})
    assert read(claim).isolation == "None"


def _with(claim: dict[str, Any], **changes: Any) -> dict[str, Any]:
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    result |= changes
    return claim


def test_claims_that_cannot_be_prepared_say_why(rig: Any, read: Any) -> None:
    with pytest.raises(
        ClaimRefusedError, match="vision/claim-c1: has uid c1, the kubelet asks for c2: it was re-created"
    ):
        read(rig.claim(), "c2")
    with pytest.raises(ClaimRefusedError, match="holds no device of"):
        read(rig.claim() | {"status": {}})
    with pytest.raises(ClaimRefusedError, match="holds no device of"):
        read(_with(rig.claim(), driver="gpu.nvidia.com"))
    with pytest.raises(ClaimRefusedError, match=r"device gpu-10 of pool .* is not on this node"):
        read(_with(rig.claim(), device="gpu-10"))
    with pytest.raises(ClaimRefusedError, match="is not on this node"):
        read(_with(rig.claim(), pool="node10/gpu-1"))
    with pytest.raises(ClaimRefusedError, match="consumedCapacity: 'computePercent'"):
        read(_with(rig.claim(), consumedCapacity={}))
    with pytest.raises(ClaimRefusedError, match=r"1\.5G"):
        read(rig.claim(memory="1.5G"))
    with pytest.raises(ClaimRefusedError, match="opaque parameters"):
        read(rig.claim(isolation="Everybody"))
    two = rig.claim()
    two["status"]["allocation"]["devices"]["results"] *= 2
    with pytest.raises(ClaimRefusedError, match="ask for one share in a claim"):
        read(two)


@pytest.mark.case("G2", "G5", "A13")
@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"percent": 0}, "computePercent is 0"),
        ({"percent": 101}, "computePercent is 101; gpu-0 takes 1 to 100"),
        ({"percent": -1}, "computePercent is -1"),
        ({"memory": "80Gi"}, "memory .* is 81920; gpu-0 takes 1 to 81559"),
        ({"clients": 0}, "clients is 0"),
        ({"clients": 49, "percent": 100}, "clients is 49; gpu-0 takes 1 to 48"),
        ({"clients": 41, "percent": 40}, "leaves each less than 1 percent"),
    ],
)
def test_sizes_out_of_range_are_refused_and_never_clamped(rig: Any, read: Any, more: dict[str, Any], said: str) -> None:
    """Cases G2, G5, A13."""
    record = read(rig.claim(**more))
    device = rig.shares().devices()[record.pool, record.device]
    assert re.search(said, out_of_range(record, device) or "accepted")


@pytest.mark.case("D3", "D21")
@given(
    st.lists(
        st.tuples(st.integers(1, 100), st.integers(64, 81559), st.integers(1, 48), st.integers(0, 18)), max_size=12
    )
)
def test_whatever_is_accepted_fits(rig_devices: list[NodeDevice], wanted: list[tuple[int, int, int, int]]) -> None:
    """Cases D3, D21: sums hold and nothing overlaps, for any order of claims."""
    accepted: list[tuple[ClaimRecord, NodeDevice]] = []
    for n, (percent, memory, clients, at) in enumerate(wanted):
        device = rig_devices[at]
        record = _record(f"c{n}", device, percent, memory, clients)
        if refusal(record, device, accepted) is None:
            accepted.append((record, device))
    for record, device in accepted:
        same = [r for r, _ in accepted if r.same_device(record)]
        assert sum(r.compute_percent for r in same) <= 100
        assert sum(r.memory_mib for r in same) <= device.memory_mib
        assert sum(r.clients for r in same) <= device.clients
        assert not any(d.overlaps(device) for r, d in accepted if not r.same_device(record))


def _record(uid: str, device: NodeDevice, percent: int, memory: int, clients: int) -> ClaimRecord:
    placement = device.placement
    return ClaimRecord(
        uid, "ns", uid, "boot", "gpulet", device.pool, device.name, None, device.gpu.uuid,
        placement.profile if placement else None, placement.start if placement else None,
        percent, memory, clients, "Namespace", "serve",
    )  # fmt: skip


@pytest.fixture(scope="module")
def rig_devices() -> list[NodeDevice]:
    """All 19 devices of one H100."""
    source = SimulatedSource("node1", [("NVIDIA-H100-80GB-HBM3", True, 0)], Path("/nonexistent"), Path("/nonexistent"))
    return list(inventory("node1", source.gpus()).values())


@pytest.mark.case("B5", "B13")
@given(st.integers(1, 100), st.integers(1, 81559), st.integers(1, 48))
def test_no_variable_ever_means_no_limit(
    rig_devices: list[NodeDevice], percent: int, memory: int, clients: int
) -> None:
    """Cases B5, B13: for whatever sizes, a percentage of 1 to 100 and a whole number of M above 0, within the share."""
    environment = cdi.environment(_record("c", rig_devices[0], percent, memory, clients), "simulated")
    each = int(environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"])
    assert 1 <= each <= 100
    assert each == 1 or each * clients <= percent
    ordinal, limit = environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"].split("=")
    assert (ordinal, limit[-1]) == ("0", "M")
    assert 1 <= int(limit[:-1]) <= memory


@pytest.mark.case("E10")
def test_cdi_spec_puts_the_device_before_the_share(rig_devices: list[NodeDevice], tmp_path: Path) -> None:
    record = _record("c1", rig_devices[0], 40, 1024, 1)
    edits = {"deviceNodes": [{"path": "/dev/nvidia0"}], "env": ["NVIDIA_VISIBLE_DEVICES=void"]}
    document = cdi.spec(record, DaemonFolders(tmp_path / "mps", record.gpu), "nvml", edits)
    (device,) = document["devices"]
    assert device["containerEdits"]["deviceNodes"] == [{"path": "/dev/nvidia0"}]
    assert device["containerEdits"]["env"][0] == "NVIDIA_VISIBLE_DEVICES=void"
    assert f"{document['kind']}={device['name']}" == cdi.cdi_id(record) == "gpulet.dev/share=c1-gpulet"
    cdi.write(tmp_path / "cdi", "c1", document)
    cdi.write(tmp_path / "cdi", "c10", document)
    assert sorted(p.name for p in (tmp_path / "cdi").iterdir()) == ["gpulet.dev-c1.json", "gpulet.dev-c10.json"]
    assert json.loads((tmp_path / "cdi/gpulet.dev-c1.json").read_text()) == document
    cdi.remove(tmp_path / "cdi", "c1")
    assert set(cdi.written(tmp_path / "cdi")) == {"c10"}, "case E10"


def test_store_keeps_records_by_exact_uid(rig_devices: list[NodeDevice], tmp_path: Path) -> None:
    store = ClaimStore(tmp_path / "claims")
    assert store.all() == []
    records = [_record(uid, rig_devices[0], 10, 64, 1) for uid in ("c1", "c10")]
    for record in records:
        store.write(record)
    assert store.all() == records
    store.remove("c1")
    store.remove("c1")
    assert (store.read("c1"), store.read("c10")) == (None, records[1])


def test_a_cdi_file_declares_the_lowest_version_that_covers_it(rig: Any, read: Any) -> None:
    """The driver's files may need a later one than our own edits; a runtime refuses what it does not know."""
    record = read(rig.claim(device="gpu-1"))
    folders = DaemonFolders(rig.mps, record.gpu)
    nodes = {"deviceNodes": [{"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}]}

    def version(**edits: Any) -> str:
        return str(cdi.spec(record, folders, "nvml", nodes | edits)["cdiVersion"])

    assert version() == "0.5.0"
    assert version(additionalGids=[44]) == "0.7.0"
    assert version(additionalGids=[44], netDevices=[{"hostInterfaceName": "a", "name": "b"}]) == "1.1.0"
    (device,) = cdi.spec(record, folders, "nvml", nodes)["devices"]
    assert device["containerEdits"]["deviceNodes"] == nodes["deviceNodes"]
    assert len(device["containerEdits"]["mounts"]) == 2
