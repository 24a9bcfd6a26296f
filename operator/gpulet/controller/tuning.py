"""From a TuningJob to its artifact: tracker, servers in gpulets, clients, merge. Pure; the state is what exists.

The decisions of the start (share, batch, what is compared) are kept in status: a plan that moves later moves no
search that is under way.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from gpulet.api import names
from gpulet.api.gpulet import Gpulet
from gpulet.api.policy import Policy
from gpulet.api.tuningjob import Artifact, TuningJob, TuningLatency, WorkerFigures
from gpulet.api.workload import TuneProgress, TuneReport
from gpulet.build.gpulet import Share, tuning_gpulet
from gpulet.build.names import short_hash
from gpulet.build.tuning import Tuning, clients_job, network_policy, tracker_pod, tracker_service
from gpulet.controller.actions import Action, Apply, Delete, Tell
from gpulet.controller.room import Room
from gpulet.controller.tuning_report import merge_report
from gpulet.controller.tuning_start import Start, start_of, tuning_of
from gpulet.controller.tuning_status import past_deadline, status_of
from gpulet.controller.world import World, deleting, owned_by
from gpulet.model.plan import Plan
from gpulet.status.conditions import Fact, find, no, unknown, yes
from gpulet.status.figures import rounded
from gpulet.status.gpulet import pod_ready, scheduling_refusal

_NO_CUDA_BUILD = (
    "target llvm: this version tunes for CPUs and simulated GPUs alone, and the cluster has real GPUs, which need a "
    "tuner image with TVM's CUDA build: remove this TuningJob (and spec.tuning of its model)"
)


_CLIENTS_COME_UP = timedelta(seconds=30)


@dataclass(frozen=True)
class AtWork:
    """What a pass knows of a job that goes on."""

    room: Room
    progress: TuneProgress | None
    refused: str | None
    now: datetime

    def fact(self, reason: str, unschedulable: str | None) -> Fact:
        """How far the job is, or what holds it up."""
        if self.refused is not None:
            return unknown("Succeeded", "Refused", self.refused)
        if unschedulable is not None:
            return unknown("Succeeded", "Unschedulable", unschedulable)
        return unknown("Succeeded", reason)

    def no_room(self, start: Start) -> Fact:
        return unknown("Succeeded", "NoRoomToTune", self.room.why_not(memory_mib=start.memory_mib))


def reconcile(
    world: World,
    job: TuningJob,
    *,
    plan: Plan,
    room: Room,
    progress: TuneProgress | None,
    policy: Policy,
    refused: str | None = None,
    now: datetime,
) -> list[Action]:
    """The next steps of one job. ``refused``: what the API server says of a part of it that it does not accept."""
    done = find(job.status.conditions, "Succeeded")
    if done is not None and done.status != "Unknown":
        return _clean_up(world, job)
    if job.spec.suspend:
        return _clean_up(world, job) + status_of(job, unknown("Succeeded", "Suspended"), now=now, phase="Suspended")
    if past_deadline(job, now):
        message = (
            f"spec.deadlineSeconds: not finished within {job.spec.deadline_seconds} s; raise it or lower spec.trials"
        )
        return _fail(world, job, "DeadlineExceeded", message, now=now)
    if any(gpu.simulated_millicores == 0 for gpu in room.gpus):
        return _fail(world, job, "NoCudaBuild", _NO_CUDA_BUILD, now=now)
    start = start_of(world, job, plan, policy)
    if isinstance(start, Fact):
        if start.status == "False":
            return _fail(world, job, start.reason, start.message, now=now)
        # Whatever it waits for may never come, as a model that is gone: it must hold no share meanwhile.
        return _clean_up(world, job) + status_of(job, start, now=now, phase="Pending")
    at_work = AtWork(room, progress, refused, now)
    return _run(world, job, start, at_work, policy)


def _run(world: World, job: TuningJob, start: Start, at_work: AtWork, policy: Policy) -> list[Action]:
    namespace = job.metadata.namespace
    service = world.services.get((namespace, f"{job.metadata.name}-tracker"))
    host = ((service or {}).get("spec") or {}).get("clusterIP", "")
    tuning = tuning_of(job, start, policy, tracker_host=host)
    gpulets = world.gpulets_of(names.LABEL_JOB, namespace, job.metadata.name)
    clients = world.client_jobs.get((namespace, tuning.clients))
    searched = clients is not None and (clients.get("status") or {}).get("completionTime") is not None
    if clients is not None and _failed(clients) is not None:
        message = f"Job {tuning.clients}: {_failed(clients)}; see the logs of its pods"
        return _fail(world, job, "ClientsFailed", message, now=at_work.now)
    if searched:
        return _merge(world, job, start, tuning, gpulets, at_work)
    actions = _tracker(world, tuning)
    wanted = int(policy.tuning.servers if job.spec.parallelism.servers == "Auto" else job.spec.parallelism.servers)
    servers = [g for g in gpulets if g.spec.tuning and g.spec.tuning.role == "server"]
    have = {g.spec.tuning.ordinal for g in servers if g.spec.tuning}
    for ordinal in sorted(set(range(wanted)) - have):
        manifest = _gpulet(tuning, start, at_work.room, role="server", ordinal=ordinal)
        if manifest is not None:
            actions.append(Apply(manifest))
            have.add(ordinal)
    if not have:
        return actions + status_of(job, at_work.no_room(start), now=at_work.now, phase="Pending", start=start)
    if host and clients is None:
        actions.append(Apply(clients_job(tuning, cpu=policy.tuning.client_cpu, memory=policy.tuning.client_memory)))
    figures = _workers(world, job, servers, clients)
    phase = "Searching" if at_work.refused is None or job.status.start_time else "Pending"
    searching = at_work.fact("Searching", scheduling_refusal(world.pods.get((namespace, tuning.tracker))))
    if searching.reason == "Searching" and clients is not None and _podless(world, job, at_work.now):
        searching = unknown("Succeeded", "NoClients", f"`kubectl describe job {tuning.clients}` says why it has no pod")
    return actions + status_of(
        job, searching, now=at_work.now, phase=phase, start=start, workers=figures, progress=at_work.progress
    )


def _tracker(world: World, tuning: Tuning) -> list[Action]:
    """What is missing of the tracker, and of the fence around the job's pods before any of them."""
    key = (tuning.namespace, tuning.tracker)
    parts = (
        (world.network_policies, network_policy),
        (world.services, tracker_service),
        (world.pods, tracker_pod),
    )
    return [Apply(build(tuning)) for found, build in parts if key not in found]


def _merge(
    world: World, job: TuningJob, start: Start, tuning: Tuning, gpulets: list[Gpulet], at_work: AtWork
) -> list[Action]:
    """The clients are done: their servers go, one Gpulet of the same share builds, checks and measures."""
    actions: list[Action] = [
        Delete("Gpulet", g.key, g.metadata.uid, "searched")
        for g in gpulets
        if g.spec.tuning and g.spec.tuning.role == "server"
    ]
    merge = next((g for g in gpulets if g.spec.tuning and g.spec.tuning.role == "merge"), None)
    report = merge_report(world.pods.get(merge.key)) if merge is not None else None
    if report is not None and report.digest is not None and not report.error:
        return _succeed(job, start, report, now=at_work.now)
    if report is not None:
        error = report.error or "no artifact"
        return _fail(world, job, report.reason or "MergeFailed", error, now=at_work.now)
    merging = at_work.fact("Merging", scheduling_refusal(world.pods.get(merge.key)) if merge is not None else None)
    if merge is None:
        manifest = _gpulet(tuning, start, at_work.room, role="merge", ordinal=0)
        if manifest is None:
            merging = at_work.no_room(start)
        else:
            actions.append(Apply(manifest))
    return actions + status_of(job, merging, now=at_work.now, phase="Merging", start=start, progress=at_work.progress)


def _succeed(job: TuningJob, start: Start, report: TuneReport, *, now: datetime) -> list[Action]:
    """Status first; what is left of the job is cleaned up in the next pass, from that status."""
    artifact = Artifact(
        uri=f"{job.spec.output.uri.rstrip('/')}/{report.path}",
        digest=report.digest or "",
        tvm_version=report.tvm_version,
        model_uri=start.source.uri,
        model_digest=report.model_digest,
    )
    latency = TuningLatency(
        before_milliseconds=rounded(report.before_milliseconds),
        untuned_milliseconds=rounded(report.untuned_milliseconds),
        after_milliseconds=rounded(report.after_milliseconds),
        onnx_runtime_milliseconds=rounded(report.onnx_runtime_milliseconds),
    )
    fact = yes("Succeeded", "Adopted" if report.adopted else "NotBetter", _verdict(report))
    actions = status_of(
        job, fact, now=now, phase="Succeeded", start=start, latency=latency, artifact=artifact, adopted=report.adopted
    )
    return [*actions, Tell(_regarding(job), fact.reason, fact.message)]


def _verdict(report: TuneReport) -> str:
    before, after = report.before_milliseconds, report.after_milliseconds
    if before is None or after is None:
        return ""
    return f"{after:.3g} ms a batch tuned, {before:.3g} ms as served before, measured in turns in the same share"


def _gpulet(tuning: Tuning, start: Start, room: Room, *, role: str, ordinal: int) -> dict[str, Any] | None:
    device = room.take(
        namespace=tuning.namespace,
        purpose="tune",
        compute_percent=start.compute_percent,
        memory_mib=start.memory_mib,
    )
    if device is None:
        return None
    share = Share(device, start.compute_percent, start.memory_mib)
    revision = short_hash([tuning.image, tuning.job["metadata"]["uid"]])
    return tuning_gpulet(tuning.job, share=share, role=role, ordinal=ordinal, revision=revision)


def _failed(clients: dict[str, Any]) -> str | None:
    for condition in (clients.get("status") or {}).get("conditions") or ():
        if condition["type"] == "Failed" and condition["status"] == "True":
            return str(condition.get("message") or condition.get("reason"))
    return None


def _podless(world: World, job: TuningJob, now: datetime) -> bool:
    """Whether the Job of the clients has made no pod for long: a quota's no to its controller stays in its Events."""
    if job.status.start_time is None or now < datetime.fromisoformat(job.status.start_time) + _CLIENTS_COME_UP:
        return False
    wanted = {names.LABEL_JOB: job.metadata.name, names.LABEL_ROLE: "client"}
    return not any(
        namespace == job.metadata.namespace and wanted.items() <= (pod["metadata"].get("labels") or {}).items()
        for (namespace, _), pod in world.pods.items()
    )


def _workers(world: World, job: TuningJob, servers: list[Gpulet], clients: dict[str, Any] | None) -> WorkerFigures:
    """Clients and servers at work now."""
    ready = sum(pod_ready(world.pods.get(g.key)) for g in servers)
    return WorkerFigures(clients=((clients or {}).get("status") or {}).get("active", 0) or 0, servers=ready)


def _clean_up(world: World, job: TuningJob) -> list[Action]:
    """Everything of the job but its output; nothing is left after the pass that finds nothing."""
    namespace, name = job.key
    actions: list[Action] = [
        Delete("Gpulet", g.key, g.metadata.uid, "job ended") for g in world.gpulets_of(names.LABEL_JOB, namespace, name)
    ]
    children = (
        ("Pod", (namespace, f"{name}-tracker"), world.pods),
        ("Service", (namespace, f"{name}-tracker"), world.services),
        ("Job", (namespace, f"{name}-clients"), world.client_jobs),
        ("NetworkPolicy", (namespace, f"{name}-tracker"), world.network_policies),
    )
    for kind, key, found in children:
        raw = found.get(key)
        # By owner, not by name alone: somebody's own pod may be called so.
        if raw is not None and not deleting(raw) and owned_by(raw, job.metadata.uid):
            actions.append(Delete(kind, key, raw["metadata"]["uid"], "job ended"))
    return actions


def _fail(world: World, job: TuningJob, reason: str, message: str, *, now: datetime) -> list[Action]:
    fact = no("Succeeded", reason, message)
    status = status_of(job, fact, now=now, phase="Failed")
    return [*status, Tell(_regarding(job), reason, message, warning=True), *_clean_up(world, job)]


def _regarding(job: TuningJob) -> dict[str, Any]:
    return {"apiVersion": names.API_VERSION, "kind": "TuningJob", "metadata": job.metadata.to_dict()}
