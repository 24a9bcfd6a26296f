"""Nodes and GPUs as the planner sees them."""

from typing import Any

import pytest

from gpulet.controller.inventory import gpus, mebibytes, millicores, nodes, pod_requests, quantity
from tests.controller.cluster import Cluster, node, whole_gpu_slice


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("500m", 0.5),
        ("2", 2),
        (".5", 0.5),
        ("1e3", 1000),
        ("1E-3", 0.001),
        ("12E", 12e18),
        ("5k", 5000),
        ("1Ki", 1024),
        ("1.5Gi", 1.5 * 2**30),
        ("128974848000m", 128974848),
        ("100n", 1e-7),
        ("3Pi", 3 * 2**50),
        (7, 7),
    ],
)
def test_every_form_of_a_quantity_is_read(text: str, value: float) -> None:
    """A foreign pod may write any of them, and must not stop the loop."""
    assert quantity(text) == pytest.approx(value)


def test_units_are_whole() -> None:
    assert millicores("250m") == 250 and millicores("1.5") == 1500
    assert mebibytes("1Gi") == 1024 and mebibytes("1000000") == 0


def test_what_is_no_quantity_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        quantity("lots")


def pod(**spec: Any) -> dict[str, Any]:
    return {"kind": "Pod", "metadata": {"name": "p", "namespace": "ns"}, "spec": {"nodeName": "node1"} | spec}


def container(cpu: str, memory: str, **more: Any) -> dict[str, Any]:
    return {"name": "c", "resources": {"requests": {"cpu": cpu, "memory": memory}}} | more


def test_sidecars_add_and_the_largest_init_step_counts() -> None:
    """Failure case D5."""
    spec = pod(
        containers=[container("100m", "100Mi"), container("200m", "100Mi")],
        initContainers=[container("50m", "50Mi", restartPolicy="Always"), container("900m", "10Mi")],
    )
    assert pod_requests(spec) == (900, 250)


def test_other_pods_take_from_the_node_and_our_serving_pods_do_not() -> None:
    cluster = Cluster()
    cluster.add(node("node1", cpu="2", memory="4Gi"))
    cluster.add(pod(containers=[container("500m", "1Gi")]))
    ours = pod(containers=[container("700m", "1Gi")])
    ours["metadata"] |= {
        "name": "ours", "labels": {"app.kubernetes.io/managed-by": "gpulet", "gpulet.dev/role": "serve"},
    }  # fmt: skip
    cluster.add(ours)
    (found,) = nodes(cluster.world())
    assert (found.free_cpu_millicores, found.free_memory_mib) == (1500, 3072)


def test_a_node_that_says_nothing_of_itself_offers_nothing() -> None:
    cluster = Cluster()
    cluster.add({"kind": "Node", "metadata": {"name": "new"}, "spec": {}})
    (found,) = nodes(cluster.world())
    assert not found.ready and found.free_cpu_millicores == 0


def test_a_pool_that_is_being_rewritten_is_not_read() -> None:
    """Failure case C14: half an inventory is none."""
    whole = whole_gpu_slice("node1", 0)
    assert len(gpus([whole])) == 1
    half = whole_gpu_slice("node1", 0)
    half["spec"]["pool"] |= {"generation": 2, "resourceSliceCount": 2}
    assert gpus([whole, half]) == ()
