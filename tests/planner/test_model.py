"""What a plan says of itself."""

from __future__ import annotations

from gpulet.model.demand import ModelId
from gpulet.model.plan import Placed, Plan, Slot, Turn
from tests.planner.worlds import device


def test_a_gpulet_of_several_models_is_one_slot_of_the_plan() -> None:
    a, b = ModelId("vision", "a"), ModelId("vision", "b")
    slot = Slot(a, device(0), 40, 4000, 2, 4, 1, turns=(Turn(a, 4, 3000), Turn(b, 2, 5000)), cycle_us=20_000)
    found = Plan(tuple(Placed(m, (slot,), 25.0, 9.0, "shared") for m in (a, b)), (), 1, 1, "volume")
    assert found.slots == (slot,)
    assert slot.models == (a, b)
    assert Slot(a, device(0), 40, 4000, 2, 4, 1).models == (a,)
