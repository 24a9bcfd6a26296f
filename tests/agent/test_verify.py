"""Ready and Enforced from what was seen: pure, but for the look at our own process."""

import os
from pathlib import Path
from typing import Any

import pytest

from gpulet.agent import cdi
from gpulet.agent.claims import record_of
from gpulet.agent.observe import environment_of, pod_of
from gpulet.agent.verify import ClientSeen, PodUse, facts, pod_uses


@pytest.fixture
def judge(rig: Any) -> Any:
    """(status, reason) of Enforced for a 40 % share of a GPU that 500 millicores stand for."""

    def judged(device: str = "gpu-1", source: str = "simulated", **given: Any) -> tuple[str, str]:
        record = record_of(
            rig.claim(device=device, percent=given.pop("percent", 40)), "c1", "boot", rig.shares().devices()
        )
        environment = cdi.environment(record, source)  # type: ignore[arg-type]
        seen: dict[str, Any] = {
            "settled": True,
            "clients": [ClientSeen(7, "pod-a", environment)],
            "uses": [PodUse("pod-a", (200,))],
            "millicores": 500,
        }
        found = {f.type: f for f in facts(record, source=source, environment=environment, **(seen | given))}  # type: ignore[arg-type]
        return found["Enforced"].status, found["Enforced"].reason

    return judged


def test_enforced_by_cpu_quota_when_the_listed_client_runs_under_its_share(judge: Any) -> None:
    assert judge() == ("True", "CPUQuota")


@pytest.mark.case("B11", "D15")
@pytest.mark.parametrize("limits", [(None,), (201,), (200, None), ()])
def test_a_share_that_nothing_holds_is_accounting_only(judge: Any, limits: tuple[int | None, ...]) -> None:
    """Cases B11, D15."""
    assert judge(uses=[PodUse("pod-a", limits)]) == ("False", "AccountingOnly")


@pytest.mark.case("A29", "B9")
def test_not_verified_until_its_own_client_is_listed(judge: Any) -> None:
    """Cases A29, B9: another pod's client proves nothing."""
    assert judge(clients=[]) == ("Unknown", "NotVerified")
    assert judge(clients=[ClientSeen(7, "pod-b", {}), ClientSeen(8, None, {})]) == ("Unknown", "NotVerified")
    assert judge(settled=False) == ("Unknown", "NotVerified")
    assert judge(clients=[ClientSeen(7, "pod-a", None)]) == ("Unknown", "NotVerified")


@pytest.mark.parametrize(
    "change",
    [
        {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100"},
        {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": None},
        {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=80G"},
        {"CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps"},
    ],
)
def test_a_client_with_other_limits_than_planned_is_tampered(
    rig: Any, judge: Any, change: dict[str, str | None]
) -> None:
    record = record_of(rig.claim(device="gpu-1"), "c1", "boot", rig.shares().devices())
    environment = cdi.environment(record, "simulated") | change
    own = {k: v for k, v in environment.items() if v is not None}
    assert judge(clients=[ClientSeen(7, "pod-a", own)]) == ("False", "Tampered")


@pytest.mark.case("B1")
def test_more_clients_than_claimed_are_a_finding(judge: Any) -> None:
    """Case B1: limits hold per process."""
    assert judge(clients=[ClientSeen(7, "pod-a", {}), ClientSeen(8, "pod-a", {})]) == ("False", "Tampered")


def test_on_real_gpus_the_reason_says_what_holds_the_share(judge: Any) -> None:
    assert judge(source="nvml", uses=[PodUse("pod-a", (None,))]) == ("True", "MPSEnvironment")
    assert judge(source="nvml", device="gpu-0-mig-3g-40gb-4", percent=100) == ("True", "MIG")
    assert judge(source="nvml", device="gpu-0-mig-3g-40gb-4") == ("True", "MPSEnvironment")


@pytest.mark.case("D5")
def test_pods_are_found_by_the_claims_they_use() -> None:
    """Named claims and those made from templates; init containers and sidecars count (case D5)."""
    with_claim = {"claims": [{"name": "g"}], "limits": {"cpu": "0.5"}}
    pod = {
        "metadata": {"namespace": "ns", "name": "p", "uid": "u1"},
        "spec": {
            "resourceClaims": [
                {"name": "g", "resourceClaimName": "named"},
                {"name": "t", "resourceClaimTemplateName": "x"},
            ],
            "initContainers": [{"name": "server", "resources": with_claim}],
            "containers": [
                {"name": "prober"},
                {"name": "b", "resources": {"claims": [{"name": "t"}], "limits": {"cpu": "25m"}}},
            ],
        },
        "status": {"resourceClaimStatuses": [{"name": "t", "resourceClaimName": "made"}]},
    }
    plain = {"metadata": {"namespace": "ns", "name": "q", "uid": "u2"}, "spec": {"containers": [{"name": "c"}]}}
    assert pod_uses([pod, plain]) == {
        ("ns", "named"): [PodUse("u1", (500,))],
        ("ns", "made"): [PodUse("u1", (25,))],
    }


@pytest.mark.parametrize(
    "cgroup",
    [
        "4:cpu,cpuacct:/gpulet0-node1/kubepods/burstable/pod0a1b2c3d-0000-4444-8888-0123456789ab/0f0f",
        "0::/kubepods.slice/kubepods-pod0a1b2c3d_0000_4444_8888_0123456789ab.slice/cri-containerd-0f.scope",
        "0::/../../pod0a1b2c3d-0000-4444-8888-0123456789ab/0f0f",
    ],
)
def test_a_process_is_of_the_pod_that_its_cgroup_names(tmp_path: Path, cgroup: str) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/cgroup").write_text(f"12:pids:/\n{cgroup}\n")
    assert pod_of(tmp_path, 7) == "0a1b2c3d-0000-4444-8888-0123456789ab"
    assert pod_of(tmp_path, 8) is None


def test_an_environment_is_that_of_the_start() -> None:
    found = environment_of(Path("/proc"), os.getpid())
    assert found is not None
    assert found["PATH"]
    assert environment_of(Path("/proc"), 2**22 + 1) is None
