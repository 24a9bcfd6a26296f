"""From one Gpulet to its claim and its pod. Pure: what is there is compared elsewhere."""

from typing import Any

from pydantic import ValidationError

from gpulet.api import names
from gpulet.api.gpulet import Gpulet
from gpulet.api.inferencemodel import InferenceModel, ModelSource, PodTemplate
from gpulet.api.modelprofile import ModelProfile
from gpulet.api.policy import Policy
from gpulet.api.workload import LONGEST_PATIENCE_S, ProfileSpec, ServedModel, ServeSpec, ShareConfig
from gpulet.build.claim import claim
from gpulet.build.gpulet import share_of
from gpulet.build.pod import host_of, profiling_pod, serving_pod
from gpulet.build.source import model_file
from gpulet.controller.inventory import device_millicores
from gpulet.controller.world import Raw, World
from gpulet.model.sharing import Tenant


def source_of(model: InferenceModel, gpulet: Gpulet) -> ModelSource:
    """What this Gpulet serves of the model: its own file, or the tuned artifact the spec names."""
    served = next(m for m in gpulet.spec.models or () if m.name == model.metadata.name)
    return model.spec.model if served.artifact is None else ModelSource(uri=served.artifact, format="tvm")


def claim_of(world: World, gpulet: Gpulet) -> dict[str, Any]:
    """The claim of any Gpulet, with whom its fault domain may be shared."""
    return claim(gpulet, config=_config(world, gpulet))


def tenant_of(world: World, gpulet: Gpulet) -> Tenant:
    """What the Gpulet is to its neighbours: as its claim says, which never changes, or will say once it is made."""
    config = config_in(world.claims.get(gpulet.key)) or _config(world, gpulet)
    return Tenant(gpulet.metadata.namespace, config.isolation, config.purpose)


def config_in(raw: Raw | None) -> ShareConfig | None:
    """Our configuration in a ResourceClaim; None if it has none that can be read."""
    for config in ((raw or {}).get("spec", {}).get("devices") or {}).get("config") or ():
        opaque = config.get("opaque") or {}
        if opaque.get("driver") == names.DRIVER:
            try:
                return ShareConfig.model_validate(opaque.get("parameters"))
            except ValidationError:
                return None
    return None


def _config(world: World, gpulet: Gpulet) -> ShareConfig:
    if gpulet.spec.tuning is not None:
        return ShareConfig(isolation="Any", purpose="tune")
    if gpulet.spec.profiling is not None:
        # A neighbour would be measured with it.
        return ShareConfig(isolation="None", purpose="profile")
    models = [world.models.get((gpulet.metadata.namespace, m.name)) for m in gpulet.spec.models or ()]
    wanted = {m.spec.sharing.isolation for m in models if m is not None}
    strictest = next((i for i in ("None", "Namespace", "Any") if i in wanted), "Namespace")
    return ShareConfig(isolation=strictest, purpose="serve")  # type: ignore[arg-type]  # one of the three


def serving_pod_of(world: World, gpulet: Gpulet, model: InferenceModel, policy: Policy) -> dict[str, Any]:
    """The Triton pod of a serving Gpulet; raises UnsupportedSourceError."""
    served = next(m for m in gpulet.spec.models or () if m.name == model.metadata.name)
    source = source_of(model, gpulet)
    file = model_file(source)
    own = model_file(model.spec.model) if served.artifact is not None else None
    watched = own if own is not None and own.replaceable else None
    spec = ServeSpec(
        models=[
            ServedModel(
                name=served.name,
                format=source.format,
                path=file.path,
                batch=served.batch,
                instances=served.instances,
                queue_delay_microseconds=served.queue_delay_microseconds,
                source=watched.path if watched is not None else None,
            )
        ],
        percentiles=sorted({50.0, model.spec.slo.percentile}),
        patience_seconds=patience_s(model.spec.slo.latency_milliseconds),
    )
    return serving_pod(
        gpulet,
        spec=spec,
        files={served.name: file},
        sources={served.name: watched} if watched is not None else {},
        image=policy.images.serving,
        model=model.spec,
        host=host_of(model.spec.pod_template, cpu=policy.host_cpu, memory=policy.host_memory),
        millicores=millicores_of(world, gpulet),
        routed=True,
    )


def patience_s(objective_ms: float) -> float:
    """How long a request in flight may take at the end of its pod: twice the objective, from 10 s to 10 minutes."""
    return min(max(10.0, 2 * objective_ms / 1000), LONGEST_PATIENCE_S)


def profiling_pod_of(
    world: World, gpulet: Gpulet, profile: ModelProfile, source: ModelSource, policy: Policy, *, product: str
) -> dict[str, Any]:
    """The pod that measures one share for a ModelProfile; raises UnsupportedSourceError."""
    assert gpulet.spec.profiling is not None and profile.spec.measure is not None
    batches = list(gpulet.spec.profiling.batches)
    file = model_file(source)
    name = "model"
    share = share_of(gpulet.spec)
    return profiling_pod(
        gpulet,
        serve=ServeSpec(models=[ServedModel(name=name, format=source.format, path=file.path, batch=max(batches))]),
        probe=ProfileSpec(
            model=name,
            product=product,
            mig=share.device.profile,
            compute_percent=share.compute_percent,
            memory_mebibytes=share.memory_mib,
            batches=batches,
            seconds_per_point=profile.spec.measure.seconds_per_point,
        ),
        file=file,
        image=policy.images.serving,
        host=host_of(PodTemplate(), cpu=policy.host_cpu, memory=policy.host_memory),
        millicores=millicores_of(world, gpulet),
    )


def millicores_of(world: World, gpulet: Gpulet) -> int:
    """CPU that stands for the Gpulet's device; 0 on a real GPU."""
    device = share_of(gpulet.spec).device
    return device_millicores(world, device.node, device.gpu, device.profile)
