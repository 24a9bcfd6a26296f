"""Which file a model is served from and which profile speaks for it. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpulet.api import names
from gpulet.api.inferencemodel import InferenceModel, ModelSource
from gpulet.api.modelprofile import ModelProfile, Point
from gpulet.api.policy import Policy
from gpulet.api.tuningjob import TuningJob
from gpulet.build.names import short_hash
from gpulet.build.source import UnsupportedSourceError, model_file
from gpulet.controller.co_runs import co_runs_of
from gpulet.controller.inventory import products_of
from gpulet.controller.sources import is_outdated
from gpulet.controller.world import Key, World
from gpulet.model.profile import Profile, ProfilePoint
from gpulet.status.conditions import Fact, find, no, yes


@dataclass(frozen=True)
class Wanted:
    """A ModelProfile that has to exist and does not: one file of a model, measured on one product."""

    name: str
    product: str
    source: ModelSource
    fixed_batch: int | None = None
    """A tuned artifact runs at this batch alone."""


@dataclass(frozen=True)
class Choice:
    """What a model is to be served from, and what is known of it."""

    source: ModelSource
    profile: Profile | None
    profiled: Fact
    artifact: str | None = None
    """URI of the adopted tuned artifact, if that is served."""
    fixed_batch: int | None = None
    wanted_profiles: tuple[Wanted, ...] = ()
    job: TuningJob | None = None
    """The job whose artifact waits for its profiles, or is served."""
    named: frozenset[str] = frozenset()
    """ModelProfiles that speak for the model's file or its artifact, or will once they are made and measured."""


def choices_of(world: World) -> dict[Key, Choice]:
    """The choice for every model."""
    products = products_of(world.slices.values())
    return {key: choose(world, model, products) for key, model in world.models.items()}


def choose(world: World, model: InferenceModel, products: Sequence[str]) -> Choice:
    """The adopted artifact once it is profiled, else the model's own file. ``products``: what the cluster has."""
    try:
        model_file(model.spec.model)
    except UnsupportedSourceError as error:
        # Without a profile there is no demand: a share for a pod that cannot be made would be held for nothing.
        return Choice(model.spec.model, None, no("Profiled", "UnsupportedSource", str(error)))
    own = _own_choice(world, model, products)
    job = adopted_job(world, model)
    if job is None or job.status.artifact is None:
        return own
    artifact = job.status.artifact
    source = ModelSource(uri=artifact.uri, format="tvm")
    found, wanted = _profiles(
        world, model, source, products, version=artifact.digest, fixed_batch=job.status.batch or 1
    )
    measured = _measured(found)
    own = replace(own, named=own.named | _names(found, wanted))
    # On every product that the model may run on, or a full product could leave it without a place.
    if wanted or not measured or len(measured) < len(found):
        return replace(own, wanted_profiles=own.wanted_profiles or wanted, job=job)
    profile = _joined(measured)
    return Choice(
        source=source,
        profile=profile,
        profiled=yes("Profiled", "Measured", f"{profile.source}: {len(profile.points)} points of the tuned artifact"),
        artifact=artifact.uri,
        fixed_batch=job.status.batch,
        job=job,
        named=own.named,
    )


def _own_choice(world: World, model: InferenceModel, products: Sequence[str]) -> Choice:
    source, namespace = model.spec.model, model.metadata.namespace
    if model.spec.profile_ref is not None:
        name = model.spec.profile_ref.name
        given = world.profiles.get((namespace, name))
        if given is None:
            message = f"spec.profileRef: no ModelProfile {name} in namespace {namespace}; create it or remove the field"
            return Choice(source, None, no("Profiled", "ProfileNotFound", message))
        named = frozenset((name,))
        if is_outdated(world, given):
            message = f"ModelProfile {name} is of another file of its model; it is measured anew"
            return Choice(source, None, no("Profiled", "Measuring", message), named=named)
        points = points_of(given)
        if points:
            fact = yes("Profiled", "Given", f"ModelProfile {name}")
            return Choice(source, Profile(points, name, co_runs_of(given)), fact, named=named)
        return Choice(source, None, _unmeasured(given), named=named)
    found, wanted = _profiles(world, model, source, products, version=source.format)
    measured, named = _measured(found), _names(found, wanted)
    if measured:  # the other products are measured beside serving
        profile = _joined(measured)
        fact = yes("Profiled", "Measured", f"{profile.source}: {len(profile.points)} points")
        return Choice(source, profile, fact, wanted_profiles=wanted, named=named)
    if found:
        return Choice(source, None, _unmeasured(found[0]), wanted_profiles=wanted, named=named)
    if wanted:
        fact = no("Profiled", "NotMeasured", "no profile yet")
        return Choice(source, None, fact, wanted_profiles=wanted, named=named)
    return Choice(source, None, _nowhere(model, products))


def _names(found: Sequence[ModelProfile], wanted: Sequence[Wanted]) -> frozenset[str]:
    return frozenset(p.metadata.name for p in found) | frozenset(w.name for w in wanted)


def _profiles(
    world: World,
    model: InferenceModel,
    source: ModelSource,
    products: Sequence[str],
    *,
    version: str,
    fixed_batch: int | None = None,
) -> tuple[list[ModelProfile], tuple[Wanted, ...]]:
    """Gpulet's own profiles of one file, one a product, by name; and those that are still to be made."""
    namespace, name = model.key
    identity = (source.uri, version)
    found = [
        profile
        for profile in world.profiles_made_for(namespace, name)
        if profile.spec.measure is not None
        and profile.metadata.name == profile_name(name, *identity, profile.spec.measure.product or "")
    ]
    allowed = [p for p in products if model.spec.products is None or p in model.spec.products]
    wanted = [Wanted(profile_name(name, *identity, p), p, source, fixed_batch) for p in allowed]
    return found, tuple(w for w in wanted if (namespace, w.name) not in world.profiles)


def _measured(profiles: list[ModelProfile]) -> list[ModelProfile]:
    return [p for p in profiles if is_measured(p) and points_of(p)]


def _joined(profiles: list[ModelProfile]) -> Profile:
    points = tuple(point for profile in profiles for point in points_of(profile))
    co_runs = tuple(co_run for profile in profiles for co_run in co_runs_of(profile))
    return Profile(points, source="ModelProfile " + ", ".join(p.metadata.name for p in profiles), co_runs=co_runs)


def _nowhere(model: InferenceModel, products: Sequence[str]) -> Fact:
    if not products:
        message = "no profile, and no node offers a GPU to measure it on: see `kubectl get resourceslices`"
        return no("Profiled", "NoDevice", message)
    wanted = ", ".join(model.spec.products or ())
    message = f"spec.products: the cluster has no {wanted}; it has {', '.join(products)}: change or remove the field"
    return no("Profiled", "NoDevice", message)


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
    """Of the ModelProfile that Gpulet makes for one file of a model on one product."""
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
        and not is_stale(job, model)
    ]
    return max(found, key=lambda job: (job.status.completion_time or "", job.metadata.name), default=None)


def is_stale(job: TuningJob, model: InferenceModel) -> bool:
    """Whether another file than the one it tuned has come to lie at the same URI. What nobody has read is believed."""
    tuned_from = job.status.artifact.model_digest if job.status.artifact is not None else None
    there = model.status.source_digest
    return tuned_from is not None and there is not None and tuned_from != there


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


def wanted_manifest(model: InferenceModel, wanted: Wanted, policy: Policy) -> dict[str, object]:
    """A ModelProfile that Gpulet makes for a model (or its artifact) that has none; the model owns it."""
    batches = list(policy.profiling.batches) if wanted.fixed_batch is None else [wanted.fixed_batch]
    measure: dict[str, object] = {
        "product": wanted.product,
        "computePercents": list(policy.profiling.compute_percents),
        "batches": batches,
        "secondsPerPoint": policy.profiling.seconds_per_point,
    }
    return {
        "apiVersion": names.API_VERSION,
        "kind": "ModelProfile",
        "metadata": {
            "name": wanted.name,
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
        "spec": {"model": wanted.source.to_dict(), "measure": measure},
    }
