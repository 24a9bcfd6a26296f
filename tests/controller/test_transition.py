"""Make before break, and what happens where the new cannot stand beside the old."""

import dataclasses
from typing import Any

from gpulet.api.gpulet import Gpulet
from gpulet.build.gpulet import serving_gpulet
from gpulet.controller.transition import DRAIN_S, Scene, steps
from gpulet.model.demand import ModelId
from gpulet.model.device import Device, Gpu
from gpulet.model.plan import Slot

GPU_A = Gpu(node="node1", uuid="GPU-a", product="P", memory_mib=81920, clients=48)
GPU_B = Gpu(node="node2", uuid="GPU-b", product="P", memory_mib=81920, clients=48)


def manifest(model: str, gpu: Gpu, percent: int) -> dict[str, Any]:
    slot = Slot(ModelId("ns", model), Device(gpu.node, gpu.uuid), percent, 1024, 1, 1, 1)
    owner = {
        "apiVersion": "gpulet.dev/v1alpha1",
        "kind": "InferenceModel",
        "metadata": {"name": model, "namespace": "ns", "uid": f"uid-{model}"},
    }
    return serving_gpulet(slot, owner=owner, revision="r")


def key(made: dict[str, Any]) -> tuple[str, str]:
    return "ns", made["metadata"]["name"]


def scene(*, existing: list[dict[str, Any]], desired: list[dict[str, Any]], ready: list[dict[str, Any]]) -> Scene:
    objects = {key(m): Gpulet.model_validate(m) for m in existing}
    return Scene(
        gpus=(GPU_A, GPU_B),
        existing=objects,
        desired={key(m): m for m in desired},
        ready=frozenset(key(m) for m in ready),
        unrouted_for_s={},
        planned_models=frozenset(ModelId("ns", m["spec"]["models"][0]["name"]) for m in desired),
        serving=frozenset(objects),
    )


def test_the_old_stays_until_the_new_serves() -> None:
    old, new = manifest("m", GPU_A, 40), manifest("m", GPU_B, 60)
    before = steps(scene(existing=[old], desired=[new], ready=[old]))
    assert before.create == (new,)
    assert not before.unroute and not before.remove
    starting = steps(scene(existing=[old, new], desired=[new], ready=[old]))
    assert starting.empty


def test_the_old_leaves_the_service_first_and_is_deleted_after_the_drain() -> None:
    old, new = manifest("m", GPU_A, 40), manifest("m", GPU_B, 60)
    settled = scene(existing=[old, new], desired=[new], ready=[old, new])
    assert steps(settled).unroute == (key(old),)
    draining = dataclasses.replace(settled, unrouted_for_s={key(old): DRAIN_S - 0.1})
    assert steps(draining).empty
    drained = dataclasses.replace(settled, unrouted_for_s={key(old): DRAIN_S})
    assert [(r.key, r.reason) for r in steps(drained).remove] == [(key(old), "Replaced")]


def test_the_old_goes_first_only_where_both_cannot_stand_together() -> None:
    old, new = manifest("m", GPU_A, 60), manifest("m", GPU_A, 80)
    answer = steps(scene(existing=[old], desired=[new], ready=[old]))
    assert not answer.create
    assert [r.reason for r in answer.remove] == ["BreakBeforeMake"]
    assert ModelId("ns", "m") in answer.waiting


def test_a_neighbour_that_is_moving_away_is_waited_for() -> None:
    """n moves from A to B; m grows on A: n's old share goes the gentle way, and m waits for it."""
    n_old, n_new, m_new = manifest("n", GPU_A, 50), manifest("n", GPU_B, 50), manifest("m", GPU_A, 80)
    answer = steps(scene(existing=[n_old, n_new], desired=[n_new, m_new], ready=[n_old]))
    assert not answer.remove and not answer.create
    assert ModelId("ns", "m") in answer.waiting


def test_two_models_that_swap_places_do_not_wait_for_each_other() -> None:
    a_old, a_new = manifest("a", GPU_A, 80), manifest("a", GPU_B, 80)
    b_old, b_new = manifest("b", GPU_B, 80), manifest("b", GPU_A, 80)
    answer = steps(scene(existing=[a_old, b_old], desired=[a_new, b_new], ready=[a_old, b_old]))
    assert {r.reason for r in answer.remove} == {"BreakBeforeMake"}


def test_tuning_yields_to_serving_at_once() -> None:
    tuner = {
        "apiVersion": "gpulet.dev/v1alpha1",
        "kind": "Gpulet",
        "metadata": {"name": "t", "namespace": "ns", "labels": {"gpulet.dev/origin": "plan"}},
        "spec": {
            "device": {"node": "node1", "gpu": "GPU-a"},
            "computePercent": 50,
            "memory": "1Gi",
            "clients": 1,
            "tuning": {"job": "j", "role": "server"},
        },
    }
    new = manifest("m", GPU_A, 80)
    asked = scene(existing=[tuner], desired=[new], ready=[])
    asked = dataclasses.replace(asked, serving=frozenset())
    assert [(r.key[1], r.reason) for r in steps(asked).remove] == [("t", "YieldedToServing")]


def test_a_model_that_no_longer_fits_keeps_serving_while_nobody_needs_its_room() -> None:
    old = manifest("m", GPU_A, 60)
    answer = steps(scene(existing=[old], desired=[], ready=[old]))
    assert answer.empty


def test_a_planned_world_needs_no_step() -> None:
    kept = manifest("m", GPU_A, 60)
    assert steps(scene(existing=[kept], desired=[kept], ready=[kept])).empty
