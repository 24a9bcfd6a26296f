"""From the caches to a World."""

from collections.abc import Mapping
from typing import Any

from gpulet.api.gpulet import Gpulet
from gpulet.api.inferencemodel import InferenceModel
from gpulet.api.modelprofile import ModelProfile
from gpulet.api.tuningjob import TuningJob
from gpulet.controller.world import Invalid, Key, Raw, World, parse_one


class Reader:
    """Reads each version of an object once: a thousand models cost a pass as much as those that changed."""

    def __init__(self) -> None:
        self._read: dict[str, dict[Key, tuple[Raw, Any]]] = {}

    def read(self, objects: Mapping[str, Mapping[Key, Raw]]) -> World:
        """``objects``: by kind, all objects of that kind by key. Invalid ones of ours are set aside."""
        invalid: list[Invalid] = []

        def typed(kind: type[Any]) -> dict[Key, Any]:
            return self._typed(kind, objects[kind.__name__], invalid)

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

    def _typed(self, kind: type[Any], raws: Mapping[Key, Raw], invalid: list[Invalid]) -> dict[Key, Any]:
        before, now = self._read.get(kind.__name__, {}), {}
        for key, raw in raws.items():
            known = before.get(key)
            # An informer never changes what it has handed out: the same dict is the same version.
            now[key] = known if known is not None and known[0] is raw else (raw, parse_one(kind, raw))
        self._read[kind.__name__] = now
        invalid += [one for _, one in now.values() if isinstance(one, Invalid)]
        return {key: one for key, (_, one) in now.items() if not isinstance(one, Invalid)}


def read_world(objects: Mapping[str, Mapping[Key, Raw]]) -> World:
    """One view, read once."""
    return Reader().read(objects)
