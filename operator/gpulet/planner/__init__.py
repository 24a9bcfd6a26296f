"""The decision: from a Problem to a Plan. Pure: no clock, no randomness, no I/O."""

from gpulet.model.plan import RoomRequest
from gpulet.planner.plan import plan
from gpulet.planner.room import find_room
from gpulet.planner.steps import steps

__all__ = ["RoomRequest", "find_room", "plan", "steps"]
