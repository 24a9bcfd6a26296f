"""What a share's pod and status carry beside the share itself. Whole passes."""

import asyncio

import pytest

from gpulet.api.gpulet import DeviceRef
from gpulet.status.gpulet import short_device
from tests.controller.cluster import Cluster, given_profile, inference_model, of_nodes
from tests.controller.passes import one_pass


@pytest.fixture
def cluster() -> Cluster:
    made = of_nodes(2)
    made.add(given_profile("p"))
    return made


def settle(cluster: Cluster) -> None:
    for _ in range(5):
        asyncio.run(one_pass(cluster))
        cluster.kubelet()


SOURCE = {"uri": "oci://registry.example.com/m@sha256:0", "format": "onnx", "credentialsRef": {"name": "pull"}}


def test_every_pod_that_mounts_a_private_image_has_its_pull_secret(cluster: Cluster) -> None:
    cluster.add(inference_model("served", rate=5, slo_ms=300, model=SOURCE, profileRef={"name": "p"}))
    cluster.add(inference_model("measured", rate=5, slo_ms=300, model=SOURCE))
    settle(cluster)
    roles = {
        pod["metadata"]["labels"]["gpulet.dev/role"]: pod["spec"].get("imagePullSecrets")
        for pod in cluster.objects["Pod"].values()
    }
    assert roles == {"serve": [{"name": "pull"}], "profile": [{"name": "pull"}]}


def test_the_clients_of_a_tuning_job_have_it_too(cluster: Cluster) -> None:
    cluster.add(inference_model("m", rate=5, slo_ms=300, model=SOURCE, profileRef={"name": "p"}))
    spec = {"modelRef": {"name": "m"}, "trials": 8, "output": {"uri": "pvc://store/m"}}
    job = {"kind": "TuningJob", "metadata": {"name": "j", "namespace": "vision"}, "spec": spec}
    cluster.add({"apiVersion": "gpulet.dev/v1alpha1"} | job)
    settle(cluster)
    clients = cluster.objects["Job"]["vision", "j-clients"]
    assert clients["spec"]["template"]["spec"]["imagePullSecrets"] == [{"name": "pull"}]


def test_a_file_that_needs_no_secret_brings_none(cluster: Cluster) -> None:
    cluster.add(inference_model("m", rate=5, slo_ms=300, profileRef={"name": "p"}))
    settle(cluster)
    (pod,) = cluster.objects["Pod"].values()
    assert "imagePullSecrets" not in pod["spec"]


def test_a_share_says_in_short_where_it_is(cluster: Cluster) -> None:
    cluster.add(inference_model("m", rate=5, slo_ms=300, profileRef={"name": "p"}))
    settle(cluster)
    (gpulet,) = cluster.objects["Gpulet"].values()
    assert gpulet["status"]["device"] == "GPU-node1-0"


@pytest.mark.parametrize(
    ("mig", "short"), [(None, "GPU-8b1fbde3"), ({"profile": "3g.40gb", "start": 4}, "GPU-8b1fbde3/3g.40gb@4")]
)
def test_a_uuid_is_cut_to_its_first_block(mig: dict[str, object] | None, short: str) -> None:
    gpu = "GPU-8b1fbde3-474d-5df1-9f09-a3852b034da9"
    device = DeviceRef.model_validate({"node": "n", "gpu": gpu} | ({"mig": mig} if mig else {}))
    assert short_device(device) == short
