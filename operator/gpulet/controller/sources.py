"""Which file a ModelProfile measures, and whether what it knows is still of that file. Pure."""

from gpulet.api.inferencemodel import ModelSource
from gpulet.api.modelprofile import MeasuredSource, ModelProfile
from gpulet.build.source import UnsupportedSourceError, model_file
from gpulet.controller.world import World
from gpulet.status.conditions import Fact, no


def source_of(world: World, profile: ModelProfile) -> ModelSource | Fact:
    """The model to measure, or why there is none."""
    if profile.spec.model is not None:
        source = profile.spec.model
    else:
        name = profile.spec.model_ref.name if profile.spec.model_ref else ""
        model = world.models.get((profile.metadata.namespace, name))
        if model is None:
            return no("Measured", "ModelNotFound", f"spec.modelRef: no InferenceModel {name} in this namespace")
        source = model.spec.model
    try:
        model_file(source)
    except UnsupportedSourceError as error:
        return no("Measured", "UnsupportedSource", str(error))
    return source


def identity(source: ModelSource) -> MeasuredSource:
    """What is kept beside the points."""
    return MeasuredSource(uri=source.uri, format=source.format)


def is_outdated(world: World, profile: ModelProfile) -> bool:
    """Whether its points are of another file than the one to measure: the model of ``spec.modelRef`` has changed."""
    if profile.spec.measure is None or profile.status.source is None:
        return False
    source = source_of(world, profile)
    return isinstance(source, ModelSource) and identity(source) != profile.status.source
