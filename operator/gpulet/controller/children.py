"""The second reconciler: each Gpulet becomes one claim and one pod of its name; each model one Service. Pure."""

from typing import Any

from gpulet.api import names
from gpulet.api.gpulet import Gpulet
from gpulet.api.policy import Policy
from gpulet.build.pod import Host
from gpulet.build.service import model_service
from gpulet.build.source import UnsupportedSourceError
from gpulet.build.tuning import merge_pod, server_pod
from gpulet.controller.actions import Action, Apply, Delete
from gpulet.controller.profiling import product_of
from gpulet.controller.room import Room
from gpulet.controller.sources import source_of
from gpulet.controller.tuning_start import start_of, tuning_of
from gpulet.controller.workloads import claim_of, millicores_of, profiling_pod_of, serving_pod_of
from gpulet.controller.world import Key, World, deleting
from gpulet.model.plan import Plan
from gpulet.status.conditions import Fact
from gpulet.status.gpulet import disrupted


def children(world: World, *, plan: Plan, room: Room, obsolete: frozenset[Key], policy: Policy) -> list[Action]:
    """What is missing of Gpulets' claims and pods and of models' Services.

    Claims and pods never change, so they are written only when they are absent; what still lies under their name
    from a predecessor is waited for.
    """
    actions: list[Action] = []
    for key, gpulet in sorted(world.gpulets.items()):
        if gpulet.metadata.deletion_timestamp is not None or key in obsolete:
            continue
        if key not in world.claims:
            actions.append(Apply(claim_of(world, gpulet)))
        pod = world.pods.get(key)
        if pod is None:
            manifest = pod_of(world, gpulet, plan=plan, room=room, policy=policy)
            if manifest is not None:
                actions.append(Apply(manifest))
        elif disrupted(pod) and not deleting(pod):
            actions.append(Delete("Pod", key, pod["metadata"]["uid"], "made anew after a disruption"))
    for _, model in sorted(world.models.items()):
        if model.metadata.deletion_timestamp is None:
            owner = {"apiVersion": names.API_VERSION, "kind": "InferenceModel", "metadata": model.metadata.to_dict()}
            actions.append(Apply(model_service(owner)))
    return actions


def pod_of(world: World, gpulet: Gpulet, *, plan: Plan, room: Room, policy: Policy) -> dict[str, Any] | None:
    """The pod of a Gpulet; None while what it needs is not there (its status says so where it is decided)."""
    namespace = gpulet.metadata.namespace
    try:
        if gpulet.spec.models:
            model = world.models.get((namespace, gpulet.spec.models[0].name))
            return serving_pod_of(world, gpulet, model, policy) if model is not None else None
        if gpulet.spec.profiling is not None:
            profile = world.profiles.get((namespace, gpulet.spec.profiling.profile))
            source = source_of(world, profile) if profile is not None else None
            if profile is None or source is None or isinstance(source, Fact):
                return None
            return profiling_pod_of(world, gpulet, profile, source, policy, product=product_of(room, gpulet))
    except UnsupportedSourceError:
        return None
    return _tuning_pod(world, gpulet, plan=plan, policy=policy)


def _tuning_pod(world: World, gpulet: Gpulet, *, plan: Plan, policy: Policy) -> dict[str, Any] | None:
    reference = gpulet.spec.tuning
    job = world.jobs.get((gpulet.metadata.namespace, reference.job)) if reference is not None else None
    if reference is None or job is None:
        return None
    start = start_of(world, job, plan, policy)
    service = world.services.get((gpulet.metadata.namespace, f"{job.metadata.name}-tracker"))
    host = ((service or {}).get("spec") or {}).get("clusterIP", "")
    if isinstance(start, Fact) or (reference.role == "server" and not host):
        return None
    tuning = tuning_of(job, start, policy, tracker_host=host)
    place = Host(cpu=policy.host_cpu, memory=policy.tuning.client_memory)
    build = server_pod if reference.role == "server" else merge_pod
    return build(gpulet, tuning, host=place, millicores=millicores_of(world, gpulet))
