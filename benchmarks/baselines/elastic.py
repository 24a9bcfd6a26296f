"""Elastic partitioning: gpu-lets (arXiv 2109.01611; ATC'22), after the description of its authors' program.

A GPU has one part or two. Per model: the most efficient share (steepest gain of throughput), as many saturated ones as
the rate fills, and one of the smallest sufficient size for the rest; best fit; then whatever is still empty; then one
share for several residues of a model; then time sharing inside a share; with interference, every share is re-tightened
when a neighbour arrives, and what it loses is placed again.

Deliberately not as in the authors' program, each in its favour: models of low rate are placed too; batches up to 32;
the true neighbour is checked; time sharing follows Nexus' merge rule and retries smaller batches; a lost rate is placed
again in rounds, not once. ``Rules.slack_per_s`` is theirs (15); comparisons of rates set it to 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from benchmarks.baselines.gpulets import Fleet, Gpu, Need, Place, Rules, Share, estimate
from benchmarks.baselines.nexus import BATCH_TOLERANCE, merge
from benchmarks.baselines.surface import EPSILON, Grid, Service, Turn, residue, saturated


def elastic(
    demands: Sequence[tuple[Service, float]], gpus: int, grid: Grid, rules: Rules | None = None
) -> Fleet | None:
    """A plan of (model, requests per second) on so many GPUs, or None if the algorithm finds none."""
    rules = rules or Rules()
    fleet: Fleet = ((Share(grid.whole),),) * gpus
    models = {model.name: model for model, _ in demands}
    # Step 1: by rate x objective, ascending; of equals the later one first.
    order = sorted(enumerate(demands), key=lambda d: (d[1][1] * d[1][0].objective_ms, -d[0]))
    waiting = {model.name: rate for _, (model, rate) in order if rate > 0}
    for _ in range(rules.rounds):
        for name, rate_per_s in waiting.items():
            placed = _place(fleet, models[name], rate_per_s, grid, rules)
            if placed is None:
                return None
            fleet = placed
        asked = {model.name: rate for _, (model, rate) in order if rate > 0}
        waiting = {n: lack for n, lack in _lacking(fleet, asked).items() if lack > rules.slack_per_s + EPSILON}
        if not waiting:
            return fleet
    return None


def _lacking(fleet: Fleet, asked: Mapping[str, float]) -> dict[str, float]:
    lack = dict(asked)
    for gpu in fleet:
        for share in gpu:
            for turn in share.turns:
                lack[turn.model.name] -= turn.rate_per_s
    return {name: left for name, left in lack.items() if left > 1e-6}


def _place(fleet: Fleet, model: Service, rate_per_s: float, grid: Grid, rules: Rules) -> Fleet | None:
    needs = estimate(model, rate_per_s, grid, rules)
    if needs is None:
        return None
    fitted = _best_fit(fleet, model, needs, grid, rules)
    if fitted is not None:
        return fitted
    fleet, left_per_s = _readjust(fleet, model, rate_per_s, needs, grid, rules)
    if left_per_s > rules.slack_per_s + EPSILON:
        fleet, left_per_s = _merge_residues(fleet, model, left_per_s, grid, rules)
    if left_per_s > rules.slack_per_s + EPSILON:
        fleet, left_per_s = _share_time(fleet, model, left_per_s, rules)
    return fleet if left_per_s <= rules.slack_per_s + 1e-6 else None


def _best_fit(fleet: Fleet, model: Service, needs: Sequence[Need], grid: Grid, rules: Rules) -> Fleet | None:
    """Every need in an empty share, the largest need first (step 4); None if one has no place."""
    for need in sorted(needs, key=lambda n: -n.size):
        for place in _empty(fleet, need.size, grid, whole_first=rules.whole_first):
            placed = _put(fleet, place, model, need.size, need.rate_per_s, grid, rules)
            if placed is not None and placed[1] >= need.rate_per_s - 1e-6:
                fleet = placed[0]
                break
        else:
            return None
    return fleet


def _empty(fleet: Fleet, size: int, grid: Grid, *, whole_first: bool) -> list[Place]:
    """Empty shares that are large enough, in the order of preference."""
    found = [
        (g, s) for g, gpu in enumerate(fleet) for s, share in enumerate(gpu) if not share.turns and share.size >= size
    ]
    whole = {place: fleet[place[0]][place[1]].size == grid.whole for place in found}
    return sorted(found, key=lambda p: (whole[p] != whole_first, fleet[p[0]][p[1]].size - size, p))


def _put(
    fleet: Fleet, place: Place, model: Service, size: int, rate_per_s: float, grid: Grid, rules: Rules
) -> tuple[Fleet, float] | None:
    """The model in an empty share, cut to ``size`` if it is a whole GPU, else grown to it; and what it carries there.

    A neighbour that would be too slow is re-tightened. None: this share cannot serve the model, or the neighbour.
    """
    gpu, at = list(fleet[place[0]]), place[1]
    if gpu[at].size == grid.whole and size in grid.rest:
        gpu = [Share(size), Share(grid.rest[size])]
        at = 0
    neighbour = next((share for i, share in enumerate(gpu) if i != at and share.turns), None)
    own_size = gpu[at].size
    turn = _filled(model, own_size, rate_per_s, neighbour, rules)
    if turn is None:
        return None
    gpu[at] = Share(own_size, (turn,))
    if neighbour is not None:
        tightened = _tightened(neighbour, gpu[at], rules)
        if tightened is None:
            return None
        gpu[1 - at] = tightened
    return (*fleet[: place[0]], tuple(gpu), *fleet[place[0] + 1 :]), turn.rate_per_s


def _filled(model: Service, size: int, rate_per_s: float, neighbour: Share | None, rules: Rules) -> Turn | None:
    """As much of the rate as a share of this size carries: saturated, or the residue with its own cycle."""
    full = saturated(model, size)
    if full is None:
        return None
    slower = _slower(model, full.batch, size, neighbour, rules)
    full = saturated(model, size, slower=slower)
    if full is None:
        return None
    if full.per_s <= rate_per_s + EPSILON:
        return Turn(model, full.per_s, full.batch, 1000 * full.batch / full.per_s)
    return residue(model, size, rate_per_s, slower=slower)


def _slower(model: Service, batch: int, size: int, neighbour: Share | None, rules: Rules) -> float:
    """The worst of all models that the neighbouring share may be running."""
    if neighbour is None:
        return 1.0
    return max(
        (rules.slowdown(model, batch, size, t.model, t.batch, neighbour.size) for t in neighbour.turns), default=1.0
    )


def _tightened(share: Share, neighbour: Share, rules: Rules) -> Share | None:
    """The share beside its new neighbour: as it is if it holds, else with smaller batches and perhaps a lower rate."""
    slower = max(_slower(t.model, t.batch, share.size, neighbour, rules) for t in share.turns)
    if _holds(share, slower):
        return share
    if len(share.turns) > 1:
        longest = min(share.duty_ms, *(t.model.objective_ms for t in share.turns))
        for part in range(19, 0, -1):
            node = merge(share.size, longest * part / 20, share.turns, slower=slower)
            if node is not None:
                return Share(share.size, node.turns)
        return None
    turn = share.turns[0]
    full = saturated(turn.model, share.size, slower=slower)
    if full is None:
        return None
    if full.per_s <= turn.rate_per_s:
        return Share(share.size, (Turn(turn.model, full.per_s, full.batch, 1000 * full.batch / full.per_s),))
    fitted = residue(turn.model, share.size, turn.rate_per_s, slower=slower)
    return None if fitted is None else Share(share.size, (fitted,))


def _holds(share: Share, slower: float) -> bool:
    return share.busy(slower) <= 1 + EPSILON and all(
        share.duty_ms + slower * t.model.latency_ms(share.size, t.batch) <= t.model.objective_ms + EPSILON
        for t in share.turns
    )


def _readjust(
    fleet: Fleet, model: Service, rate_per_s: float, needs: Sequence[Need], grid: Grid, rules: Rules
) -> tuple[Fleet, float]:
    """Fill empty shares, the largest first, a whole GPU cut at the first need's size (step 5); (fleet, rate left)."""
    left_per_s = rate_per_s
    tried: set[Place] = set()
    while left_per_s > max(rules.slack_per_s, 1e-6):
        places = [p for p in _empty(fleet, 0, grid, whole_first=True) if p not in tried]
        if not places:
            break
        place = max(places, key=lambda p: (fleet[p[0]][p[1]].size, -p[0], -p[1]))
        tried.add(place)
        size = fleet[place[0]][place[1]].size
        if size == grid.whole:
            wanted = estimate(model, left_per_s, grid, rules) or needs
            size = max(n.size for n in wanted)
        placed = _put(fleet, place, model, size, left_per_s, grid, rules)
        if placed is not None:
            fleet, carried_per_s = placed
            left_per_s -= carried_per_s
    return fleet, max(0.0, left_per_s)


def _merge_residues(fleet: Fleet, model: Service, left_per_s: float, grid: Grid, rules: Rules) -> tuple[Fleet, float]:
    """One saturated share for all residues of the model and what is left, if it carries them (step 6)."""
    own = [
        (g, s)
        for g, gpu in enumerate(fleet)
        for s, share in enumerate(gpu)
        if len(share.turns) == 1 and share.turns[0].model == model and share.busy() < 1 - EPSILON
    ]
    if not own:
        return fleet, left_per_s
    rate_per_s = left_per_s + sum(fleet[g][s].turns[0].rate_per_s for g, s in own)
    fulls = {p: saturated(model, fleet[p[0]][p[1]].size) for p in own}
    least = min((f.per_s for f in fulls.values() if f is not None), default=0.0)
    if rate_per_s > least:
        return fleet, left_per_s
    cleared = fleet
    for g, s in own:
        cleared = _without(cleared, g, s, grid)
    size = min(fleet[g][s].size for g, s in own)
    for place in _empty(cleared, size, grid, whole_first=False):
        placed = _put(cleared, place, model, size, rate_per_s, grid, rules)
        if placed is not None and placed[1] >= rate_per_s - 1e-6:
            return placed[0], 0.0
    return fleet, left_per_s


def _without(fleet: Fleet, g: int, s: int, grid: Grid) -> Fleet:
    """The share emptied; a GPU whose shares are all empty is whole again."""
    gpu = tuple(replace(share, turns=()) if i == s else share for i, share in enumerate(fleet[g]))
    if not any(share.turns for share in gpu):
        gpu = (Share(grid.whole),)
    return (*fleet[:g], gpu, *fleet[g + 1 :])


def _share_time(fleet: Fleet, model: Service, left_per_s: float, rules: Rules) -> tuple[Fleet, float]:
    """A turn in shares of others, the fullest first (step 7); (fleet, rate left)."""
    hosts = [
        (g, s)
        for g, gpu in enumerate(fleet)
        for s, share in enumerate(gpu)
        if share.turns
        and len(share.turns) < rules.models_a_share
        and share.busy() < 1 - EPSILON
        and model not in [t.model for t in share.turns]
    ]
    for g, s in sorted(hosts, key=lambda p: (-fleet[p[0]][p[1]].busy(), p)):
        if left_per_s <= max(rules.slack_per_s, 1e-6):
            break
        joined = _joined(fleet[g], s, model, left_per_s, rules)
        if joined is not None:
            gpu, carried_per_s = joined
            fleet = (*fleet[:g], gpu, *fleet[g + 1 :])
            left_per_s -= carried_per_s
    return fleet, max(0.0, left_per_s)


def _joined(gpu: Gpu, s: int, model: Service, rate_per_s: float, rules: Rules) -> tuple[Gpu, float] | None:
    """The share with the model's turn added, for as much of the rate as it can take."""
    share = gpu[s]
    neighbour = next((other for i, other in enumerate(gpu) if i != s and other.turns), None)
    own = residue(model, share.size, rate_per_s)
    duty_ms = min(share.duty_ms, own.duty_ms) if own is not None else share.duty_ms
    most = max(1, int(duty_ms * rate_per_s / 1000 + 1 - BATCH_TOLERANCE))
    for batch in range(min(most, model.largest_batch(share.size)), 0, -1):
        carried_per_s = min(rate_per_s, 1000 * batch / duty_ms)
        turns = (*share.turns, Turn(model, carried_per_s, batch, duty_ms))
        slower = max(_slower(t.model, t.batch, share.size, neighbour, rules) for t in turns)
        node = merge(share.size, duty_ms, turns, slower=slower)
        if node is None:
            continue
        changed = [*gpu]
        changed[s] = Share(share.size, node.turns)
        if neighbour is not None and _tightened(neighbour, changed[s], rules) != neighbour:
            continue
        return tuple(changed), carried_per_s
    return None
