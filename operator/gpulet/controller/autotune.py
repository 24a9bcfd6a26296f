"""``spec.tuning`` of an InferenceModel: the TuningJob that Gpulet makes for it, and what the model says of it. Pure.

The jobs that exist are the memory. One is made when there is none for the model as it is now, or when the planned
share has left the shares of all finished ones by more than ``MOVED``. A job that failed is a finished one: its user
deletes it to have it tried again.
"""

from dataclasses import dataclass, replace

from gpulet.api import names
from gpulet.api.inferencemodel import InferenceModel
from gpulet.api.policy import Policy
from gpulet.api.tuningjob import TuningJob
from gpulet.build.gpulet import REVISION, owner_reference
from gpulet.build.names import short_hash
from gpulet.controller.actions import Action, Apply, Delete
from gpulet.controller.profiles import adopted_job, is_stale
from gpulet.controller.world import World
from gpulet.model.demand import ModelId
from gpulet.model.plan import Plan
from gpulet.status.conditions import Fact, find, no, unknown

MOVED = 1.5
"""Tuned candidates are ranked at one share; from this ratio of shares on the ranking is worth doing again."""
_PREFIX_LENGTH = 38
"""Of the model's name in the job's, whose own may have 50 characters."""


@dataclass(frozen=True)
class Tuned:
    """What to do about one model's tuning, and its condition ``Tuned`` (None: the model asks for no tuning)."""

    actions: tuple[Action, ...]
    fact: Fact | None


def autotune(world: World, model: InferenceModel, plan: Plan, policy: Policy, *, refused: str | None = None) -> Tuned:
    """The jobs of one model: made, removed, or left as they are. ``refused``: why the API server takes no new one."""
    own = own_jobs(world, model)
    if model.spec.tuning is None:
        return Tuned(tuple(_delete(job, "spec.tuning is gone") for job in own if not is_finished(job)), None)
    revision = _revision(model)
    current = [j for j in own if j.metadata.annotations.get(REVISION) == revision and not is_stale(j, model)]
    outdated = tuple(_delete(j, "the model has changed") for j in own if j not in current and not is_finished(j))
    if not current or _has_moved(current, _planned_percent(plan, model)):
        made = _made(world, model, policy, _next_number(own), outdated)
        return replace(made, fact=no("Tuned", "Refused", refused)) if refused is not None else made
    latest = current[-1]
    return Tuned((*outdated, *_superseded(world, model, own, latest)), _fact(latest))


def own_jobs(world: World, model: InferenceModel) -> list[TuningJob]:
    """Those that Gpulet made for this model, oldest first. A job of the user's own is none of them."""
    found = [
        job
        for (namespace, _), job in world.jobs.items()
        if namespace == model.metadata.namespace
        and job.metadata.deletion_timestamp is None
        and any(o.uid == model.metadata.uid and o.controller for o in job.metadata.owner_references)
    ]
    return sorted(found, key=lambda job: (_number(job), job.metadata.name))


def is_finished(job: TuningJob) -> bool:
    """Succeeded or failed: it will not go on."""
    succeeded = find(job.status.conditions, "Succeeded")
    return succeeded is not None and succeeded.status != "Unknown"


def _made(world: World, model: InferenceModel, policy: Policy, number: int, outdated: tuple[Action, ...]) -> Tuned:
    name = _job_name(model, number)
    if (model.metadata.namespace, name) in world.jobs:
        message = f"TuningJob {name} is not Gpulet's own: rename it, or remove spec.tuning of this model"
        return Tuned(outdated, no("Tuned", "NameTaken", message))
    folder = _output(model, policy)
    if folder is None:
        message = (
            "spec.tuning.output: nothing says where results go: give pvc://claim/folder there, or have an admin set "
            f"tuning.output in ConfigMap {names.POLICY_CONFIG_MAP}"
        )
        return Tuned(outdated, no("Tuned", "NoOutput", message))
    uri = folder if number == 1 else f"{folder}/{number}"
    return Tuned((*outdated, Apply(_manifest(model, name, number, uri))), _waiting(name, "Pending", ""))


def _manifest(model: InferenceModel, name: str, number: int, uri: str) -> dict[str, object]:
    assert model.spec.tuning is not None
    owner = {"apiVersion": names.API_VERSION, "kind": "InferenceModel", "metadata": model.metadata.to_dict()}
    return {
        "apiVersion": names.API_VERSION,
        "kind": "TuningJob",
        "metadata": {
            "name": name,
            "namespace": model.metadata.namespace,
            "labels": {names.LABEL_MANAGED_BY: names.MANAGED_BY, names.LABEL_MODEL: model.metadata.name},
            "annotations": {REVISION: _revision(model), names.ANNOTATION_NUMBER: str(number)},
            "ownerReferences": [owner_reference(owner, controller=True)],
        },
        "spec": {
            "modelRef": {"name": model.metadata.name},
            "trials": model.spec.tuning.trials,
            # Each run has a folder of its own: one that does not win must not overwrite what is served.
            "output": {"uri": uri},
        },
    }


def _job_name(model: InferenceModel, number: int) -> str:
    name = model.metadata.name
    if len(name) > _PREFIX_LENGTH:
        name = f"{name[: _PREFIX_LENGTH - 11]}-{short_hash(name)}"
    return f"{name}-tuning" if number == 1 else f"{name}-tuning-{number}"


def _output(model: InferenceModel, policy: Policy) -> str | None:
    assert model.spec.tuning is not None
    if model.spec.tuning.output is not None:
        return model.spec.tuning.output.uri.rstrip("/")
    if policy.tuning.output is None:
        return None
    return "/".join((policy.tuning.output.rstrip("/"), *model.key))


def _revision(model: InferenceModel) -> str:
    """Of what the user asks for. Not of the policy's folder: an admin who moves it starts no search anew."""
    assert model.spec.tuning is not None
    return short_hash([model.spec.model.to_dict(), model.spec.tuning.to_dict()])


def _number(job: TuningJob) -> int:
    text = job.metadata.annotations.get(names.ANNOTATION_NUMBER, "")
    return int(text) if text.isdecimal() else 1


def _next_number(own: list[TuningJob]) -> int:
    return max((_number(job) for job in own), default=0) + 1


def _has_moved(jobs: list[TuningJob], percent: int | None) -> bool:
    """Whether all are finished, none of them near the share that is planned now. One without a share has not started:
    it would fail again."""
    if percent is None or not all(is_finished(job) for job in jobs):
        return False
    shares = [job.status.compute_percent for job in jobs]
    return all(s is not None and max(s, percent) > MOVED * min(s, percent) for s in shares)


def _planned_percent(plan: Plan, model: InferenceModel) -> int | None:
    placed = next((p for p in plan.placed if p.model == ModelId(*model.key)), None)
    return placed.slots[0].compute_percent if placed is not None and placed.slots else None


def _superseded(world: World, model: InferenceModel, own: list[TuningJob], latest: TuningJob) -> list[Action]:
    """Finished jobs that nothing is known from any more: neither the latest nor the one whose result is served."""
    adopted = adopted_job(world, model)
    kept = {latest.metadata.uid} | ({adopted.metadata.uid} if adopted is not None else set())
    return [_delete(job, "superseded") for job in own if is_finished(job) and job.metadata.uid not in kept]


def _delete(job: TuningJob, reason: str) -> Delete:
    return Delete("TuningJob", job.key, job.metadata.uid, reason)


def _fact(job: TuningJob) -> Fact:
    succeeded = find(job.status.conditions, "Succeeded")
    if succeeded is None:
        return _waiting(job.metadata.name, "Pending", "")
    if succeeded.status == "Unknown":
        return _waiting(job.metadata.name, succeeded.reason, succeeded.message)
    message = succeeded.message
    if succeeded.status == "False":
        message = f"{message}; delete that TuningJob to have it tried again"
    return Fact("Tuned", succeeded.status, succeeded.reason, _said(job.metadata.name, message))


def _waiting(job: str, reason: str, message: str) -> Fact:
    return unknown("Tuned", reason, _said(job, message))


def _said(job: str, message: str) -> str:
    return f"TuningJob {job}: {message}" if message else f"TuningJob {job}"
