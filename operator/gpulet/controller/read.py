"""From the caches to a World."""

from collections.abc import Mapping
from typing import Any

from gpulet.api.gpulet import Gpulet
from gpulet.api.inferencemodel import InferenceModel
from gpulet.api.modelprofile import ModelProfile
from gpulet.api.tuningjob import TuningJob
from gpulet.controller.world import Invalid, Key, Raw, World, parse


def read_world(objects: Mapping[str, Mapping[Key, Raw]]) -> World:
    """``objects``: by kind, all objects of that kind by key. Invalid ones of ours are set aside."""
    invalid: list[Invalid] = []

    def typed(kind: type[Any]) -> dict[Key, Any]:
        return parse(kind, objects[kind.__name__].values(), invalid)

    return World(
        models=typed(InferenceModel),
        jobs=typed(TuningJob),
        profiles=typed(ModelProfile),
        gpulets=typed(Gpulet),
        claims=dict(objects["ResourceClaim"]),
        pods=dict(objects["Pod"]),
        services=dict(objects["Service"]),
        client_jobs=dict(objects["Job"]),
        # What asks without acting has no use for them, and perhaps no permission.
        network_policies=dict(objects.get("NetworkPolicy", {})),
        nodes=dict(objects["Node"]),
        slices=dict(objects["ResourceSlice"]),
        volume_claims=dict(objects["PersistentVolumeClaim"]),
        volumes=dict(objects["PersistentVolume"]),
        invalid=tuple(invalid),
    )
