"""An API server that does not accept a part of a TuningJob or a ModelProfile: who is told, how often it is asked."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from kubernetes.aio.client.configuration import Configuration

from gpulet.controller.actions import Apply
from gpulet.controller.execute import Executor
from gpulet.controller.refused import FIRST_BACKOFF_S, LONGEST_BACKOFF_S, RefusedChildren
from gpulet.kube.client import Client
from gpulet.kube.events import Events
from tests.controller.cluster import Cluster, given_profile, inference_model
from tests.controller.passes import condition, settle
from tests.controller.test_tuning import cluster as cluster
from tests.controller.test_tuning import held, later, tuning_job

QUOTA = 'pods "j-tracker" is forbidden: exceeded quota: none, requested: pods=1, used: pods=0, limited: pods=0'
JOB = ("TuningJob", ("vision", "j"))


class ApiServer:
    """Answers every request with ``status`` and ``message``, or with the object that was sent."""

    def __init__(self) -> None:
        self.status, self.message = 200, ""
        self.paths: list[str] = []

    async def answer(self, request: web.Request) -> web.Response:
        self.paths.append(request.path.rsplit("/", 1)[-1])
        body = json.loads(await request.text()) if self.status == 200 else {"message": self.message}
        return web.json_response(body, status=self.status)


class Nothing:
    """A cache that has just been filled with one Gpulet of the job."""

    def get(self, kind: str, key: tuple[str, str]) -> dict[str, Any] | None:
        if kind != "Gpulet":
            return None
        owner = {"apiVersion": "gpulet.dev/v1alpha1", "kind": "TuningJob", "name": "j", "uid": "1"}
        return {"kind": "Gpulet", "metadata": {"name": key[1], "namespace": key[0], "ownerReferences": [owner]}}

    def learn(self, raw: dict[str, Any]) -> None:
        pass


@pytest_asyncio.fixture
async def server() -> AsyncIterator[tuple[ApiServer, Executor]]:
    api, app = ApiServer(), web.Application()
    app.router.add_route("*", "/{path:.*}", api.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with Client(Configuration(host=f"http://127.0.0.1:{runner.addresses[0][1]}")) as client:
            yield api, Executor(client, Events(client, "test"))
    finally:
        await runner.cleanup()


def pod(name: str, owner_kind: str, owner: str, **labels: str) -> Apply:
    reference = {"apiVersion": "gpulet.dev/v1alpha1", "kind": owner_kind, "name": owner, "uid": "1"}
    metadata = {"name": name, "namespace": "vision", "labels": labels, "ownerReferences": [reference]}
    return Apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": []}})


@pytest.mark.parametrize("status", [403, 422])
async def test_the_owner_is_told_and_the_server_is_not_asked_again_at_once(
    server: tuple[ApiServer, Executor], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, executor = server
    clock = [1000.0]
    monkeypatch.setattr("gpulet.controller.execute.time.monotonic", lambda: clock[0])
    tracker, worker = pod("j-tracker", "TuningJob", "j"), pod("g", "Gpulet", "g", **{"gpulet.dev/gpulet": "g"})
    api.status, api.message = status, QUOTA
    for action, name in ((tracker, "j-tracker"), (worker, "g")):
        api.paths.clear()
        for _ in range(3):
            await executor.carry_out([action], Nothing())
        assert api.paths == [name], "one request, then its backoff"
        assert QUOTA in executor.refused_children[JOB]
        assert executor.take_refusals() == [], "it says nothing of where a model may run"
    clock[0] += FIRST_BACKOFF_S
    await executor.carry_out([worker], Nothing())
    assert api.paths == ["g", "g"]
    clock[0] += FIRST_BACKOFF_S
    await executor.carry_out([worker], Nothing())
    assert api.paths == ["g", "g"], "the second wait is longer"
    api.status = 200
    clock[0] += FIRST_BACKOFF_S
    await executor.carry_out([worker], Nothing())
    assert executor.refused_children == {}


async def test_what_nobody_wants_any_more_is_forgotten(server: tuple[ApiServer, Executor]) -> None:
    api, executor = server
    api.status, api.message = 403, QUOTA
    await executor.carry_out([pod("p", "ModelProfile", "m")], Nothing())
    assert set(executor.refused_children) == {("ModelProfile", ("vision", "m"))}
    await executor.carry_out([], Nothing())
    assert executor.refused_children == {}


def test_waits_double_up_to_five_minutes() -> None:
    refused, now, child = RefusedChildren(), 0.0, ("Pod", ("vision", "p"))
    waits = []
    for _ in range(8):
        refused.refuse(child, JOB, QUOTA, now_s=now)
        until = next(s for s in range(1, 10_000) if refused.may_ask(child, now_s=now + s))
        waits.append(float(until))
        now += until
    assert waits == [10, 20, 40, 80, 160, 300, 300, 300]
    assert (waits[0], waits[-1]) == (FIRST_BACKOFF_S, LONGEST_BACKOFF_S)


def test_a_tuning_job_says_what_the_api_server_says_of_its_parts(cluster: Cluster) -> None:
    job = tuning_job(cluster, deadlineSeconds=60)
    cluster.refused_children = {JOB: QUOTA}
    settle(cluster, passes=2)
    said = condition(job, "Succeeded")
    assert (said["status"], said["reason"], said["message"]) == ("Unknown", "Refused", QUOTA)
    assert "startTime" not in job["status"], "its deadline does not count before anything can run"
    cluster.refused_children = {}
    settle(cluster, passes=2)
    assert condition(job, "Succeeded")["reason"] == "Searching"


def test_clients_that_their_job_s_controller_may_not_make_are_missed(cluster: Cluster) -> None:
    job = tuning_job(cluster)
    settle(cluster)
    later(cluster, 40)
    said = condition(job, "Succeeded")
    assert said["reason"] == "NoClients" and "kubectl describe job j-clients" in said["message"]
    labels = {"gpulet.dev/tuning-job": "j", "gpulet.dev/role": "client"}
    cluster.add(
        {"kind": "Pod", "metadata": {"name": "c", "namespace": "vision", "labels": labels}, "spec": {"containers": []}}
    )
    later(cluster, 41)
    assert condition(job, "Succeeded")["reason"] == "Searching"
    assert held(cluster)


def test_a_profile_says_what_the_api_server_says_of_its_parts(cluster: Cluster) -> None:
    profile = given_profile("mine")
    profile["spec"] = {
        "model": {"uri": "configmap://m/model.onnx", "format": "onnx"},
        "measure": {"computePercents": [50], "batches": [1]},
    }
    cluster.add(profile)
    cluster.refused_children = {("ModelProfile", ("vision", "mine")): QUOTA}
    settle(cluster, passes=2)
    said = condition(profile, "Measured")
    assert (said["status"], said["reason"], said["message"]) == ("False", "Refused", QUOTA)
    cluster.refused_children = {}
    settle(cluster, passes=2)
    assert condition(profile, "Measured")["reason"] == "Measuring"


def test_a_model_says_why_its_tuning_job_cannot_be_made(cluster: Cluster) -> None:
    tuning = {"trials": 8, "output": {"uri": "pvc://s/t"}}
    model = cluster.add(inference_model("t", rate=5, slo_ms=300, profileRef={"name": "p"}, tuning=tuning))
    words = "tuningjobs.gpulet.dev is forbidden: exceeded quota: jobs"
    cluster.refused_children = {("InferenceModel", ("vision", "t")): words}
    settle(cluster, passes=1)
    said = condition(model, "Tuned")
    assert (said["status"], said["reason"], said["message"]) == ("False", "Refused", words)
