"""Which file a model is served from and which profile speaks for it. Pure."""

from dataclasses import dataclass

from gpulet.api import names
from gpulet.api.inferencemodel import InferenceModel, ModelSource
from gpulet.api.modelprofile import ModelProfile, Point
from gpulet.api.policy import Policy
from gpulet.api.tuningjob import TuningJob
from gpulet.build.names import short_hash
from gpulet.controller.world import World
from gpulet.model.profile import Profile, ProfilePoint
from gpulet.status.conditions import Fact, find, no, yes


@dataclass(frozen=True)
class Choice:
    """What a model is to be served from, and what is known of it."""

    source: ModelSource
    profile: Profile | None
    profiled: Fact
    artifact: str | None = None
    """URI of the adopted tuned artifact, if that is served."""
    fixed_batch: int | None = None
    wanted_profile: str | None = None
    """Name of a ModelProfile that has to exist for this model and does not."""
    job: TuningJob | None = None
    """The job whose artifact waits for its profile, or is served."""


def choose(world: World, model: InferenceModel) -> Choice:
    """The adopted artifact once it is profiled, else the model's own file."""
    own = _own_choice(world, model)
    job = adopted_job(world, model)
    if job is None or job.status.artifact is None:
        return own
    artifact = job.status.artifact
    name = profile_name(model.metadata.name, artifact.uri, artifact.digest)
    measured = world.profiles.get((model.metadata.namespace, name))
    points = points_of(measured)
    if measured is None or not is_measured(measured) or not points:
        return Choice(own.source, own.profile, own.profiled, wanted_profile=own.wanted_profile or name, job=job)
    return Choice(
        source=ModelSource(uri=artifact.uri, format="tvm"),
        profile=Profile(points, source=name),
        profiled=yes("Profiled", "Measured", f"ModelProfile {name}: {len(points)} points of the tuned artifact"),
        artifact=artifact.uri,
        fixed_batch=job.status.batch,
        job=job,
    )


def _own_choice(world: World, model: InferenceModel) -> Choice:
    source, namespace = model.spec.model, model.metadata.namespace
    if model.spec.profile_ref is not None:
        name = model.spec.profile_ref.name
        given = world.profiles.get((namespace, name))
        if given is None:
            message = f"spec.profileRef: no ModelProfile {name} in namespace {namespace}; create it or remove the field"
            return Choice(source, None, no("Profiled", "ProfileNotFound", message))
        points = points_of(given)
        if points:
            return Choice(source, Profile(points, source=name), yes("Profiled", "Given", f"ModelProfile {name}"))
        return Choice(source, None, _unmeasured(given))
    name = profile_name(model.metadata.name, source.uri, source.format)
    measured = world.profiles.get((namespace, name))
    if measured is None:
        return Choice(source, None, no("Profiled", "NotMeasured", "no profile yet"), wanted_profile=name)
    points = points_of(measured)
    if is_measured(measured) and points:
        return Choice(
            source,
            Profile(points, source=name),
            yes("Profiled", "Measured", f"ModelProfile {name}: {len(points)} points"),
        )
    return Choice(source, None, _unmeasured(measured))


def _unmeasured(profile: ModelProfile) -> Fact:
    """Why a profile has no points yet, in its own words."""
    condition = find(profile.status.conditions, "Measured")
    if condition is None:
        return no("Profiled", "Measuring", f"ModelProfile {profile.metadata.name} has just been made")
    return no("Profiled", condition.reason, f"ModelProfile {profile.metadata.name}: {condition.message}")


def is_measured(profile: ModelProfile) -> bool:
    """Whether nothing is left to measure."""
    if profile.spec.measure is None:
        return True
    condition = find(profile.status.conditions, "Measured")
    return condition is not None and condition.status == "True"


def profile_name(model: str, *identity: str) -> str:
    """Of the ModelProfile that Gpulet makes for one file of a model."""
    return f"{model[:40].rstrip('-')}-{short_hash(list(identity))}"


def adopted_job(world: World, model: InferenceModel) -> TuningJob | None:
    """The newest job whose result won against what is served, tuned from the model as it is now."""
    found = [
        job
        for (namespace, _), job in world.jobs.items()
        if namespace == model.metadata.namespace
        and job.spec.model_ref is not None
        and job.spec.model_ref.name == model.metadata.name
        and job.status.adopted
        and job.status.artifact is not None
        and job.status.artifact.model_uri == model.spec.model.uri
    ]
    return max(found, key=lambda job: (job.status.completion_time or "", job.metadata.name), default=None)


def points_of(profile: ModelProfile | None) -> tuple[ProfilePoint, ...]:
    """The user's own points, or the measured ones."""
    if profile is None:
        return ()
    return tuple(_point(p) for p in (profile.spec.points or profile.status.points))


def _point(point: Point) -> ProfilePoint:
    latency = point.latency_microseconds
    return ProfilePoint(
        product=point.product,
        mig=point.mig,
        compute_percent=point.compute_percent,
        batch=point.batch,
        instances=point.instances,
        mean_us=latency.mean,
        p50_us=latency.p50,
        p99_us=latency.p99,
        throughput_per_s=point.throughput_per_second,
        memory_mib=point.memory_mebibytes,
    )


def wanted_manifest(model: InferenceModel, choice: Choice, policy: Policy, *, product: str | None) -> dict[str, object]:
    """The ModelProfile that Gpulet makes for a model (or its artifact) that has none; the model owns it."""
    assert choice.wanted_profile is not None
    batches = list(policy.profiling.batches)
    if choice.job is not None and choice.job.status.artifact is not None:
        source = {"model": {"uri": choice.job.status.artifact.uri, "format": "tvm"}}
        batches = [choice.job.status.batch or 1]
    else:
        source = {"model": choice.source.to_dict()}
    measure: dict[str, object] = {
        "computePercents": list(policy.profiling.compute_percents),
        "batches": batches,
        "secondsPerPoint": policy.profiling.seconds_per_point,
    }
    if product is not None:
        measure["product"] = product
    return {
        "apiVersion": names.API_VERSION,
        "kind": "ModelProfile",
        "metadata": {
            "name": choice.wanted_profile,
            "namespace": model.metadata.namespace,
            "labels": {names.LABEL_MANAGED_BY: names.MANAGED_BY, names.LABEL_MODEL: model.metadata.name},
            "ownerReferences": [
                {
                    "apiVersion": names.API_VERSION,
                    "kind": "InferenceModel",
                    "name": model.metadata.name,
                    "uid": model.metadata.uid,
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": source | {"measure": measure},
    }
