"""The four kinds at a real API server: what is refused and how, what is accepted and stays as it is."""

import asyncio
import copy
import os
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from e2e.bad_objects import API, GPULET, JOB, MEASURED, MODEL, PROFILE, cases
from e2e.cluster import local
from e2e.cluster.commands import say
from e2e.kubectl import Kubectl
from gpulet.kube.client import Client, load_configuration
from gpulet.kube.errors import InvalidError
from gpulet.kube.kinds import GPULET as GPULET_KIND
from gpulet.kube.kinds import MODEL_PROFILE

pytestmark = pytest.mark.timeout(240)
ROOT = Path(__file__).parent.parent
NAME = "api"


@pytest.fixture(scope="module")
def kubectl() -> Iterator[Kubectl]:
    cluster = local.up(NAME, say)
    made = Kubectl(cluster.kubeconfig)
    made.run("apply", "--server-side", "-k", str(ROOT / "crds"))
    made.run("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
    yield made
    if not os.environ.get("GPULET_E2E_KEEP"):
        local.down(NAME, say)


@pytest_asyncio.fixture
async def client(kubectl: Kubectl) -> AsyncIterator[Client]:
    async with Client(await load_configuration(kubectl.kubeconfig)) as made:
        yield made


async def test_a_hundred_bad_objects_are_refused_with_the_field_named(client: Client) -> None:
    """Failure cases G1, G2, G3, G5, G9, B6, B13, K5, K6."""
    wrong = []

    async def ask(title: str, manifest: dict[str, Any], field: str) -> None:
        try:
            await client.create(manifest, dry_run=True)
        except InvalidError as error:
            if not _names(field, str(error)):
                wrong.append(f"{title}: the message does not name {field}: {error}")
        else:
            wrong.append(f"{title}: accepted")

    asked = cases()
    assert len(asked) >= 100
    await asyncio.gather(*(ask(*case) for case in asked))
    assert not wrong, "\n".join(wrong)


def _names(field: str, message: str) -> bool:
    """Whether the API server's own words have the field as a path or its end; verb, URL and kind do not count."""
    words = re.split(r" is invalid: |: ", message, maxsplit=1)[-1]
    words = words.split(" is invalid: ")[-1]
    return re.search(rf"(?<![\w-]){re.escape(field)}(?![\w-])", words) is not None


def good() -> list[tuple[str, dict[str, Any]]]:
    """Objects a user may write, the smallest and the fullest."""
    full = {
        "load": {"minRequestsPerSecond": 1, "maxRequestsPerSecond": 500.5},
        "sharing": {"mode": "Auto", "isolation": "None"},
        "products": ["NVIDIA-A100-SXM4-80GB"],
        "priority": -5,
        "profileRef": {"name": "p"},
        "tuning": {"trials": 100},
        "podTemplate": {
            "labels": {"team": "vision"},
            "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
            "cpu": "500m",
            "memory": "2Gi",
            "environment": [{"name": "LOG_LEVEL", "value": "debug"}],
        },
    }
    return [
        ("InferenceModel", MODEL),
        ("InferenceModel", MODEL | full),
        ("InferenceModel", MODEL | {"slo": {"latencyMilliseconds": 0.5, "percentile": 99.9}}),
        ("InferenceModel", MODEL | {"load": {"requestsPerSecond": 0.1}}),
        ("InferenceModel", MODEL | {"sharing": {"mode": "Exclusive"}}),
        *(("InferenceModel", MODEL | {"model": {"uri": uri, "format": "onnx"}}) for uri in _URIS),
        ("InferenceModel", MODEL | {"model": {"uri": _URIS[0], "format": "onnx", "credentialsRef": {"name": "pull"}}}),
        ("TuningJob", JOB),
        ("TuningJob", JOB | {"batch": 4, "computePercent": 50, "parallelism": {"clients": 2, "servers": "Auto"}}),
        ("TuningJob", JOB | {"batch": "Auto", "computePercent": "Auto", "suspend": True}),
        ("ModelProfile", PROFILE),
        ("ModelProfile", MEASURED),
        ("Gpulet", GPULET),
        ("Gpulet", GPULET | {"device": GPULET["device"] | {"mig": {"profile": "3g.40gb", "start": 4}}}),
    ]


_URIS = (
    "oci://registry.example.com/models/resnet50@sha256:" + "0" * 64,
    "pvc://store/models/resnet50.onnx",
    "s3://bucket/key.onnx",
    "https://example.com/model.onnx",
)


async def test_good_objects_are_accepted_and_a_second_apply_changes_nothing(client: Client) -> None:
    """Failure case I1: apply, get, apply again: same generation, same resourceVersion."""
    for number, (kind, spec) in enumerate(good()):
        manifest = {
            "apiVersion": API,
            "kind": kind,
            "metadata": {"name": f"good-{number}", "namespace": "default"},
            "spec": copy.deepcopy(spec),
        }
        first = await client.apply(manifest)
        second = await client.apply(manifest)
        assert second["metadata"]["generation"] == first["metadata"]["generation"] == 1, manifest
        assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"], manifest


async def test_a_gpulet_s_spec_never_changes(client: Client) -> None:
    manifest = {
        "apiVersion": API,
        "kind": "Gpulet",
        "metadata": {"name": "fixed", "namespace": "default"},
        "spec": copy.deepcopy(GPULET),
    }
    await client.apply(manifest)
    with pytest.raises(InvalidError, match=r"(?i)immutable"):
        await client.merge(GPULET_KIND, "fixed", "default", {"spec": {"computePercent": 50}})


@pytest.mark.parametrize(
    ("base", "change", "field"),
    [
        (MEASURED, {"modelRef": {"name": "other"}}, "modelRef"),
        (MEASURED, {"modelRef": None, "model": MODEL["model"]}, "modelRef"),
        (MEASURED, {"measure": {"product": "NVIDIA-H100-80GB-HBM3"}}, "measure"),
        (MEASURED, {"measure": {"batches": [1, 2]}}, "measure"),
        (MEASURED | {"modelRef": None, "model": MODEL["model"]}, {"model": {"uri": "configmap://m/n.onnx"}}, "model"),
        (PROFILE, {"points": None} | MEASURED, "measure"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_a_profile_measures_never_changes(
    client: Client, base: dict[str, Any], change: dict[str, Any], field: str
) -> None:
    """Or it would have the points of another model, and call them measured."""
    spec = {key: value for key, value in copy.deepcopy(base).items() if value is not None}
    await client.apply(profile_named("measured-once", spec))
    try:
        with pytest.raises(InvalidError, match=rf"{field}.*(?i:immutable).*create a new ModelProfile"):
            await client.merge(MODEL_PROFILE, "measured-once", "default", {"spec": change})
    finally:
        await client.delete(MODEL_PROFILE, "measured-once", "default")


async def test_a_user_s_own_points_may_be_mended(client: Client) -> None:
    await client.apply(profile_named("mended", copy.deepcopy(PROFILE)))
    mended = PROFILE["points"][0] | {"throughputPerSecond": 90}
    answer = await client.merge(MODEL_PROFILE, "mended", "default", {"spec": {"points": [mended]}})
    assert answer["spec"]["points"][0]["throughputPerSecond"] == 90


def profile_named(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": API, "kind": "ModelProfile", "metadata": metadata, "spec": spec}


async def test_status_conditions_are_merged_by_type(client: Client, kubectl: Kubectl) -> None:
    crds = kubectl.list("crd")
    for crd in (c for c in crds if c["spec"]["group"] == "gpulet.dev"):
        (version,) = crd["spec"]["versions"]
        status = version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
        assert status["conditions"]["x-kubernetes-list-type"] == "map"
        assert status["conditions"]["x-kubernetes-list-map-keys"] == ["type"]
        assert version["subresources"] == {"status": {}}
        assert crd["spec"]["names"]["categories"] == ["gpulet"]
        assert len(yaml.safe_dump(crd)) < 262_144, "failure case I6"
        assert "x-kubernetes-preserve-unknown-fields" not in str(version["schema"]), "failure case I7"


def test_all_manifests_are_accepted(kubectl: Kubectl) -> None:
    """Every object of the overlay, as kustomize renders it; nothing empty in it (failure case I9)."""
    rendered = kubectl.run("kustomize", str(ROOT / "manifests" / "overlays" / "demo"))
    for manifest in yaml.safe_load_all(rendered):
        assert not _empties(manifest), manifest["metadata"]["name"]
    kubectl.run("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=rendered)


_EMPTY_BY_NATURE = ("emptyDir", "status", "default")


def _empties(value: Any) -> bool:
    if isinstance(value, dict):
        # An emptyDir without limits, a status subresource and a default object are written as {} by everybody.
        return any((v in ({}, []) and k not in _EMPTY_BY_NATURE) or _empties(v) for k, v in value.items())
    return isinstance(value, list) and any(_empties(v) for v in value)


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda p: p.name)
def test_the_examples_are_accepted(kubectl: Kubectl, path: Path) -> None:
    kubectl.run("create", "--dry-run=server", "--validate=strict", "-f", str(path))
