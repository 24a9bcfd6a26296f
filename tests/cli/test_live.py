"""The commands on a cluster whose API server answers over HTTP: what they say of what is not as it should be."""

import asyncio
import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from gpulet.cli import tables, waiting, words
from gpulet.cli.live import look
from gpulet.cli.main import app
from gpulet.cli.top import Screen, follow
from gpulet.controller.world import World
from gpulet.kube.client import Client, load_configuration

A100 = "NVIDIA-A100-SXM4-80GB"
POLICY = "/api/v1/namespaces/gpulet-system/configmaps/gpulet-policy"
Raw = dict[str, Any]


class Server(ThreadingHTTPServer):
    """Lists of objects by plural, and single objects by path; all else is not found, or an empty list."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lists: dict[str, list[Raw]] = {}
        self.objects: dict[str, Raw] = {}


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        found = self.server.objects.get(path)
        if found is None and path != POLICY:
            found = {"metadata": {"resourceVersion": "1"}, "items": self.server.lists.get(path.rsplit("/", 1)[-1], [])}
        body = json.dumps(found or {"kind": "Status", "code": 404, "message": "not found"}).encode()
        self.send_response(200 if found else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Not between pytest's lines."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def kubeconfig(server: Server, tmp_path: Path) -> Path:
    path = tmp_path / "kubeconfig"
    cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    user = {"name": "u", "user": {"token": "t"}}
    content = {"apiVersion": "v1", "kind": "Config", "current-context": "c"}
    path.write_text(json.dumps(content | {"clusters": [cluster], "contexts": [context], "users": [user]}))
    return path


def condition(type_: str, status: str, reason: str, message: str = "") -> Raw:
    return {
        "type": type_,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }


def thing(kind: str, name: str, spec: Raw, status: Raw | None = None, **labels: str) -> Raw:
    metadata = {"name": name, "namespace": "vision", "labels": {k.replace("_", "/"): v for k, v in labels.items()}}
    return {
        "apiVersion": "gpulet.dev/v1alpha1",
        "kind": kind,
        "metadata": metadata,
        "spec": spec,
        "status": status or {},
    }


def model(*conditions: Raw, format_: str = "onnx") -> Raw:
    spec = {
        "model": {"uri": "pvc://models/a.onnx", "format": "onnx"},
        "slo": {"latencyMilliseconds": 20, "percentile": 90},
        "load": {"requestsPerSecond": 2},
    }
    return thing("InferenceModel", "a", spec, {"conditions": list(conditions), "servingFormat": format_})


def job(**status: Any) -> Raw:
    spec = {"modelRef": {"name": "a"}, "trials": 32, "output": {"uri": "pvc://models/tuned"}}
    artifact = {"uri": "pvc://models/tuned/tuned.so", "digest": "sha256:" + "0" * 64, "modelUri": "pvc://models/a.onnx"}
    ended = [condition("Succeeded", "True", "Adopted", "35 ms tuned, 110 ms before")]
    return thing("TuningJob", "t", spec, {"phase": "Succeeded", "artifact": artifact, "conditions": ended} | status)


def share(**of: Any) -> Raw:
    spec = {"device": {"node": "n", "gpu": "GPU-1"}, "computePercent": 50, "memory": "2Gi", "clients": 1}
    slots = [{"name": "a", "batch": 1, **of}]
    metadata = {"gpulet.dev_origin": "plan", "gpulet.dev_model": "a"}
    return thing("Gpulet", "a-1", spec | {"models": slots}, **metadata)


def profile(latencies_ms: dict[int, float], *, made_for: str | None = None) -> Raw:
    points = [
        {
            "product": A100,
            "computePercent": percent,
            "batch": 1,
            "latencyMicroseconds": {"mean": ms * 1e3, "p50": ms * 1e3, "p99": ms * 1e3},
            "throughputPerSecond": 1e3 / ms,
            "memoryMebibytes": 2048,
        }
        for percent, ms in latencies_ms.items()
    ]
    ready = [condition("Measured", "True", "Measured"), condition("Ready", "True", "Ready")]
    spec = {"modelRef": {"name": "a"}, "measure": {"computePercents": list(latencies_ms), "batches": [1]}}
    labels = {"gpulet.dev_model": made_for, "app.kubernetes.io_managed-by": "gpulet"} if made_for else {}
    status = {"conditions": ready, "points": points, "measured": len(points), "wanted": len(points)}
    return thing("ModelProfile", "p", spec, status, **labels)


def seen(server: Server, kubeconfig: Path, **lists: list[Raw]) -> World:
    server.lists = lists

    async def now() -> World:
        async with Client(await load_configuration(kubeconfig)) as client:
            return await look(client)

    return asyncio.run(now())


def call(kubeconfig: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments, "--kubeconfig", str(kubeconfig)])


INFEASIBLE = [
    condition("Planned", "False", "ObjectiveInfeasible", "the fastest measured latency is 40 ms"),
    condition("Ready", "False", "ObjectiveInfeasible", "Planned: the fastest measured latency is 40 ms"),
]


def test_waiting_in_vain_names_what_is_missing_and_why(server: Server, kubeconfig: Path) -> None:
    """Whoever waits for the demo reads the condition, the reason, the message, and that the measurement was odd."""
    server.lists = {
        "inferencemodels": [model(*INFEASIBLE)],
        "modelprofiles": [profile({50: 40.0, 100: 60.0}, made_for="a")],
    }
    console = Console(file=io.StringIO(), width=200)
    with pytest.raises(TimeoutError) as raised:
        asyncio.run(follow(kubeconfig, Screen(console), until=lambda _: False, period_s=0.05, timeout_s=0.2))
    said = str(raised.value)
    assert "vision/a: Ready is False (ObjectiveInfeasible): Planned: the fastest measured latency is 40 ms" in said
    assert "kubectl delete gmp -n vision p" in said
    assert "in 1 of 1 neighbouring shares the larger is slower" in said
    shown = console.file.getvalue()  # type: ignore[attr-defined]  # it is the StringIO of above
    assert shown.count("the fastest measured latency is 40 ms") == 1


def test_the_tables_name_what_is_missing(server: Server, kubeconfig: Path) -> None:
    unread = condition("Ready", "False", "Starting", "Serving: image [localhost/x] is not there")
    world = seen(server, kubeconfig, inferencemodels=[model(unread)])
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(tables.tables(world))
    assert "note: model vision/a: Ready is False (Starting): Serving: image [localhost/x]" in console.export_text()


def test_all_that_is_ready_is_not_waited_for(server: Server, kubeconfig: Path) -> None:
    lists = {
        "inferencemodels": [model(condition("Ready", "True", "Ready"))],
        "modelprofiles": [profile({50: 8, 90: 5})],
    }
    assert waiting.waiting(seen(server, kubeconfig, **lists)) == []


@pytest.mark.parametrize(
    ("adopted", "served", "format_", "says"),
    [
        (False, {}, "onnx", "not adopted"),
        (True, {}, "onnx", "adopted, not served yet"),
        (True, {"artifact": "pvc://models/tuned/tuned.so"}, "tvm", "adopted and served"),
        (True, {}, "tvm", "adopted, not served yet"),
    ],
)
def test_what_won_is_told_apart_from_what_is_served(
    server: Server, kubeconfig: Path, adopted: bool, served: Raw, format_: str, says: str
) -> None:
    lists = {
        "inferencemodels": [model(condition("Ready", "True", "Ready"), format_=format_)],
        "tuningjobs": [job(adopted=adopted)],
        "gpulets": [share(**served)],
    }
    world = seen(server, kubeconfig, **lists)
    assert words.result_of(world, world.jobs["vision", "t"]) == says
    output = call(kubeconfig, "explain", "vision/a").output
    assert f"t: Succeeded, {says}\n" in output
    assert "Adopted: 35 ms tuned, 110 ms before" in output


def test_the_result_for_another_file_of_the_model_is_served_no_more(server: Server, kubeconfig: Path) -> None:
    moved = model(condition("Ready", "True", "Ready"))
    moved["spec"]["model"]["uri"] = "pvc://models/b.onnx"
    world = seen(server, kubeconfig, inferencemodels=[moved], tuningjobs=[job(adopted=True)])
    assert words.result_of(world, world.jobs["vision", "t"]) == "adopted, served no more"
    assert waiting.waiting(world) == []


@pytest.mark.parametrize(
    "command", [("explain", "vision/a"), ("map",), ("plan", "--from-cluster"), ("top", "-o", "json")]
)
def test_a_policy_that_cannot_be_read_is_a_warning(server: Server, kubeconfig: Path, command: tuple[str, ...]) -> None:
    server.lists = {"inferencemodels": [model(*INFEASIBLE)]}
    server.objects = {POLICY: {"data": {"policy.yaml": "headrom: 0.2"}}}
    told = call(kubeconfig, *command)
    assert told.exit_code in ((2,) if command[0] == "plan" else (0,))
    assert "headrom: no such key: did you mean headroom?" in told.stderr
    assert "answered with the defaults" in told.stderr
    assert told.stdout


def test_the_doctor_finds_a_policy_that_cannot_be_read(server: Server, kubeconfig: Path) -> None:
    server.objects = {POLICY: {"data": {"policy.yaml": "headrom: 0.2"}}}
    told = call(kubeconfig, "doctor")
    assert told.exit_code == 2
    assert "ConfigMap gpulet-system/gpulet-policy: the controller keeps the last good policy" in told.output
    server.objects = {POLICY: {"data": {"policy.yaml": "headroom: 0.2"}}}
    assert "gpulet-policy" not in call(kubeconfig, "doctor").output


def test_without_a_kubeconfig_the_remedy_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/absent")
    told = CliRunner().invoke(app, ["map"])
    assert told.exit_code == 1
    assert f"{tmp_path}/absent: no such file" in told.stderr
    assert "export KUBECONFIG=$(make -s kubeconfig)" in told.stderr
