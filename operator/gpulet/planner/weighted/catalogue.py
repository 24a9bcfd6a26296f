"""What one replica does on each kind of share, looked up once per profile and objective."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from gpulet.model.demand import Demand
from gpulet.model.device import Gpu
from gpulet.model.plan import PlannerPolicy, Slot
from gpulet.model.profile import ProfilePoint
from gpulet.planner.throughput import Option, fixed_parts, option_of, usable_points

Share = tuple[str, str, int]
"""Product, MIG profile (empty: a whole GPU) and percent."""
Class = tuple[object, ...]
"""Demands of one class have the same options."""


@dataclass
class _Entry:
    example: Demand
    """Held, so that the identity of its profile stays its own."""
    points: tuple[ProfilePoint, ...]
    options: Mapping[Share, tuple[Option, ...]]
    batches: Mapping[Share, tuple[Option, ...]]


class Catalogue:
    """Options of all demands of one problem. Thousands of models share few profiles: each is read once."""

    def __init__(self, policy: PlannerPolicy) -> None:
        self._policy = policy
        self._entries: dict[Class, _Entry] = {}
        self._slots: dict[tuple[object, ...], Option | None] = {}

    def class_of(self, demand: Demand) -> Class:
        """Equal for demands that differ in rate, name or place alone."""
        return (
            id(demand.profile),
            demand.latency_ms,
            demand.percentile,
            demand.mode,
            demand.isolation == "None",
            demand.products,
            demand.fixed_batch,
            demand.slowdowns,
        )

    def options(self, demand: Demand) -> Mapping[Share, tuple[Option, ...]]:
        """Per kind of share the ways to use it, most requests/s first, then those that need less of something.

        ``Option.replicas`` is 1 in all of them: how many there are is what the weighted split decides.
        """
        return self._entry(demand).options

    def batches(self, demand: Demand) -> Mapping[Share, tuple[Option, ...]]:
        """Per kind of share the batches of a single instance, ascending: what takes turns there."""
        return self._entry(demand).batches

    def _entry(self, demand: Demand) -> _Entry:
        key = self.class_of(demand)
        if key not in self._entries:
            points = usable_points(demand)
            found = _by_share(demand, points, self._policy)
            useful = {share: _useful(options) for share, options in found.items()}
            single = {
                s: tuple(sorted((o for o in f if o.instances == 1), key=lambda o: o.batch)) for s, f in found.items()
            }
            self._entries[key] = _Entry(demand, points, useful, single)
        return self._entries[key]

    def of_slot(self, slot: Slot, demand: Demand, gpu: Gpu) -> Option | None:
        """What an existing slot does for the present demand; None if it no longer meets its objective.

        A share between two measured ones counts as the lower one.
        """
        if slot.artifact != demand.artifact or slot.clients != slot.instances or slot.queue_delay_us != 0:
            return None
        shape = (slot.device.profile, slot.compute_percent, slot.batch, slot.instances, slot.memory_mib)
        key = (*self.class_of(demand), gpu.product, *shape)
        if key not in self._slots:
            self._slots[key] = self._looked_up(slot, demand, gpu.product)
        return self._slots[key]

    def _looked_up(self, slot: Slot, demand: Demand, product: str) -> Option | None:
        points = [
            p
            for p in self._entry(demand).points
            if (p.product, p.mig, p.batch, p.instances) == (product, slot.device.profile, slot.batch, slot.instances)
            and p.compute_percent <= slot.compute_percent
        ]
        if not points:
            return None
        point = max(points, key=lambda p: p.compute_percent)
        option = option_of(replace(demand, requests_per_s=0.0), point, self._policy)
        if option is None or option.memory_mib > slot.memory_mib:
            return None
        return replace(option, percent=slot.compute_percent, memory_mib=slot.memory_mib)


def _by_share(demand: Demand, points: tuple[ProfilePoint, ...], policy: PlannerPolicy) -> Mapping[Share, list[Option]]:
    anyone = replace(demand, requests_per_s=0.0)
    found: dict[Share, list[Option]] = defaultdict(list)
    fixed = fixed_parts(demand, points)
    for point in points:
        option = option_of(anyone, point, policy, fixed[point])
        if option is not None:
            found[option.product, option.mig, option.percent].append(option)
    return dict(sorted(found.items()))


def _useful(options: list[Option]) -> tuple[Option, ...]:
    """Most requests/s first, at equal ones the least latency; later ones need less memory or fewer clients."""
    kept: list[Option] = []
    for option in sorted(options, key=lambda o: (-o.replica_per_s, o.p99_ms, o)):
        if not any(k.memory_mib <= option.memory_mib and k.clients <= option.clients for k in kept):
            kept.append(option)
    return tuple(kept)
