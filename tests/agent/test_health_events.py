"""Health as an admin sees it: Events on the Node, and what is kept idle in the metrics."""

from pathlib import Path
from typing import Any

import pytest

from gpulet.agent.exporter import _gpus
from gpulet.agent.health_events import HealthEvents
from gpulet.agent.shares import Shares
from gpulet.kube.errors import KubeError
from gpulet.kube.events import Events
from gpulet.metrics.node import NodeMetrics
from tests.agent.kubelet import Api, client_of
from tests.agent.nvml_rig import NvmlRig
from tests.fake_nvml.library import FakeNvml

NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node1", "uid": "u"}}


def _shares(rig: Any, **settings: Any) -> Shares:
    return Shares(node="node1", source=rig.source, daemons=rig.daemons, state=rig.state, cdi_folder=rig.cdi, **settings)


@pytest.mark.case("C6", "N1", "N2")
async def test_each_change_is_told_once_with_what_helps(rig: Any, fake_nvml: FakeNvml) -> None:
    node = NvmlRig(rig.root, fake=fake_nvml)
    api = Api({"node1": NODE})
    async with client_of(api) as client:
        told = HealthEvents(client, _shares(node), Events(client, "agent"))
        uuid = node.source.gpus()[0].uuid
        for _ in range(2):
            await told.look()
        assert api.events == []
        fake_nvml.set(0, pending=1)
        for _ in range(2):
            await told.look()
        fake_nvml.set(0, pending=0, remap_failed=1)
        await told.look()
        fake_nvml.set(0, remap_failed=0)
        for _ in range(2):
            await told.look()
    assert [(e["reason"], e["type"], e["note"]) for e in api.events] == [
        (
            "GpuDegraded",
            "Warning",
            f"GPU {uuid} is degraded: RebootRequired: a change of MIG mode waits for a reset: reset the GPU or reboot "
            "the node",
        ),
        ("GpuLost", "Warning", f"GPU {uuid} is lost: a memory row could not be remapped: replace the GPU"),
        ("GpuHealthy", "Normal", f"GPU {uuid} is healthy"),
    ]
    assert {e["regarding"]["uid"] for e in api.events} == {"u"}


@pytest.mark.case("F9")
async def test_what_could_not_be_told_is_told_when_the_api_server_is_back(rig: Any, fake_nvml: FakeNvml) -> None:
    node = NvmlRig(rig.root, fake=fake_nvml)
    api = Api({"node1": NODE}, status=500)
    async with client_of(api) as client:
        told = HealthEvents(client, _shares(node), Events(client, "agent"))
        fake_nvml.set(1, remap_pending=1)
        with pytest.raises(KubeError):
            await told.look()
        api.status = 200
        await told.look()
    assert [e["reason"] for e in api.events] == ["GpuDegraded"]


@pytest.mark.case("C19", "J5")
def test_metrics_tell_what_is_kept_idle(rig: Any, fake_nvml: FakeNvml) -> None:
    """And nothing of a GPU that is gone from the node."""
    node = NvmlRig(rig.root, fake=fake_nvml)
    shares, metrics = _shares(node, idle_instance_s=60.0), NodeMetrics()
    h100, a100 = shares.source.gpus()
    placement = next(p for p in h100.placements if p.profile == "3g.40gb")
    shares.source.create_instance(h100.uuid, placement)
    shares.source.destroy_instance(h100.uuid, placement.profile, placement.start)
    metrics.gpus(_gpus(shares))
    text = metrics.text().decode()
    assert f'gpulet_node_mig_instances_idle{{gpu="{h100.uuid}"}} 1.0' in text
    assert f'gpulet_node_mig_instances_idle{{gpu="{a100.uuid}"}} 0.0' in text
    metrics.gpus([])
    assert "gpulet_node_mig_instances_idle{" not in metrics.text().decode()
    assert Path(node.state / "instances").exists()
