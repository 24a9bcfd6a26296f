"""Which of the ModelProfiles that Gpulet made are of no use any more. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from gpulet.api.inferencemodel import InferenceModel
from gpulet.api.modelprofile import ModelProfile
from gpulet.controller.profiles import Choice, is_measured
from gpulet.controller.world import Key, World

KEPT_VERSIONS = 2
"""Earlier files of a model whose finished profiles stay: going back to one of them needs no new measurement."""


def superseded(world: World, choices: Mapping[Key, Choice], *, settled: frozenset[Key]) -> list[ModelProfile]:
    """Profiles to delete: made for a model, owned by it, and named by its choice no more.

    Unfinished ones go at once, for each holds a device that the current file waits for. Of the finished ones the
    newest few of each product stay, and all of them while something else than the current file may serve.
    ``settled``: models of which nothing serves but what is planned now.
    """
    found = []
    for key, model in sorted(world.models.items()):
        old = [p for p in world.profiles_made_for(*key) if _may_go(p, model, choices[key])]
        found += [p for p in old if not is_measured(p)]
        if key in settled:
            found += _beyond_kept(p for p in old if is_measured(p))
    return found


def _may_go(profile: ModelProfile, model: InferenceModel, choice: Choice) -> bool:
    """Labels can be written by anybody; only what the model owns is Gpulet's to delete."""
    owned = any(owner.uid == model.metadata.uid for owner in profile.metadata.owner_references)
    leaving = profile.metadata.deletion_timestamp is not None
    return owned and not leaving and profile.metadata.name not in choice.named


def _beyond_kept(finished: Iterable[ModelProfile]) -> list[ModelProfile]:
    by_product: dict[str, list[ModelProfile]] = defaultdict(list)
    for profile in finished:
        by_product[profile.spec.measure.product or "" if profile.spec.measure else ""].append(profile)
    return [p for made in by_product.values() for p in sorted(made, key=_age_order)[KEPT_VERSIONS:]]


def _age_order(profile: ModelProfile) -> tuple[float, str]:
    """Newest first."""
    created = profile.metadata.creation_timestamp
    return -created.timestamp() if created is not None else 0.0, profile.metadata.name
