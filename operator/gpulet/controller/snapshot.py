"""From a view of the cluster to the planner's question. Pure: the same world gives the same problem."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from gpulet.api import names
from gpulet.api.gpulet import Gpulet
from gpulet.api.inferencemodel import InferenceModel, ModelSource
from gpulet.api.policy import Policy
from gpulet.build.gpulet import REVISION, share_of, slot_of
from gpulet.build.names import short_hash
from gpulet.build.source import UnsupportedSourceError, model_file
from gpulet.controller.inventory import current_pools, gpus, mebibytes, millicores, nodes, quantity
from gpulet.controller.profiles import Choice
from gpulet.controller.workloads import config_in, tenant_of
from gpulet.controller.world import Key, Raw, World, is_planned
from gpulet.model.demand import Demand, ModelId
from gpulet.model.device import Device, Toleration
from gpulet.model.plan import PlannerPolicy, Problem, Refusal, Slot, Usage
from gpulet.model.profile import Profile

# A model whose rate nobody states and nobody has seen yet is planned for one request a second.
FIRST_RATE_PER_S = 1.0


def problem(
    world: World,
    *,
    choices: Mapping[Key, Choice],
    rates_per_s: Mapping[Key, float],
    refusals: tuple[Refusal, ...],
    policy: Policy,
    without: frozenset[Key] = frozenset(),
    leaving: frozenset[Key] = frozenset(),
) -> Problem:
    """The planner's question.

    ``leaving``: serving Gpulets that go when their replacements serve: until then their shares are taken.
    ``without``: Gpulets to plan as if they were gone already (tuning and profiling that yield, or leaving ones for
    whose replacements there is no other room).
    """
    demands = []
    frozen = frozen_gpulets(world, refusals, leaving=leaving)
    settled = {(key[0], m.name) for key in frozen for m in world.gpulets[key].spec.models or ()}
    for key, model in sorted(world.models.items()):
        choice = choices[key]
        if choice.profile is None or model.metadata.deletion_timestamp is not None or key in settled:
            continue
        demands.append(demand(world, model, choice, rate_per_s=rates_per_s[key], policy=policy))
    return Problem(
        gpus=gpus(world.slices.values()),
        nodes=nodes(world),
        demands=tuple(demands),
        usages=usages(world, leaving=leaving | frozen, without=without),
        current=current_slots(world, leaving=leaving | frozen),
        refusals=refusals,
        policy=PlannerPolicy(
            interference_margin=policy.interference_margin,
            transition_reserve=policy.transition_reserve,
            prices=tuple(sorted(policy.prices.items())),
            fault_domains=policy.fault_domains,
            empty_nodes=policy.empty_nodes,
            node_failure_headroom=policy.node_failure_headroom,
        ),
    )


def frozen_gpulets(world: World, refusals: tuple[Refusal, ...], *, leaving: frozenset[Key]) -> frozenset[Key]:
    """Shares of models that a quota admits nothing more of: taking one away could not be made good again.

    They stay exactly as they are and count as taken, until the quota's word is forgotten.
    """
    refused = {r.model for r in refusals if r.device is None}
    return frozenset(
        key for key, slot in _current(world, leaving=leaving) if slot.model in refused and key in world.pods
    )


def demand(world: World, model: InferenceModel, choice: Choice, *, rate_per_s: float, policy: Policy) -> Demand:
    """What one model needs now; ``rate_per_s`` before headroom."""
    spec, template = model.spec, model.spec.pod_template
    return Demand(
        model=ModelId(*model.key),
        requests_per_s=rate_per_s * (1 + policy.headroom),
        latency_ms=spec.slo.latency_milliseconds,
        percentile=spec.slo.percentile,
        profile=choice.profile or Profile(()),
        mode=spec.sharing.mode,
        isolation=spec.sharing.isolation,
        products=tuple(spec.products) if spec.products else None,
        priority=spec.priority,
        host_cpu_millicores=millicores(template.cpu or policy.host_cpu),
        host_memory_mib=mebibytes(template.memory or policy.host_memory),
        tolerations=tuple(Toleration(t.key, t.operator or "Equal", t.value, t.effect) for t in template.tolerations),
        nodes=volume_nodes(world, model.metadata.namespace, (choice.source, spec.model)),
        artifact=choice.artifact,
        fixed_batch=choice.fixed_batch,
    )


def revision(model: InferenceModel, choice: Choice, policy: Policy) -> str:
    """What a serving pod and its claim are made from beyond its Gpulet: a change of it is a new Gpulet."""
    return short_hash(
        [
            choice.source.to_dict(),
            model.spec.pod_template.to_dict(),
            model.spec.slo.percentile,
            model.spec.sharing.isolation,
            policy.images.serving,
            policy.host_cpu,
            policy.host_memory,
        ]
    )


def leaving_gpulets(world: World, choices: Mapping[Key, Choice], policy: Policy) -> frozenset[Key]:
    """Serving Gpulets of our plan that are marked, or whose pod was built from what is no longer wanted."""
    found = set()
    for key, gpulet in world.gpulets.items():
        slot = slot_of(gpulet)
        if slot is None or not is_planned(gpulet) or gpulet.metadata.deletion_timestamp is not None:
            continue
        owner = (slot.model.namespace, slot.model.name)
        model = world.models.get(owner)
        outdated = model is not None and gpulet.metadata.annotations.get(REVISION) != revision(
            model, choices[owner], policy
        )
        if outdated or names.LABEL_LEAVING in gpulet.metadata.labels:
            found.add(key)
    return frozenset(found)


def current_slots(world: World, *, leaving: frozenset[Key]) -> tuple[Slot, ...]:
    """Replicas that exist and may stay as they are."""
    return tuple(sorted((slot for _, slot in _current(world, leaving=leaving)), key=_slot_key))


def _current(world: World, *, leaving: frozenset[Key]) -> Iterator[tuple[Key, Slot]]:
    for key, gpulet in world.gpulets.items():
        slot = slot_of(gpulet)
        if slot is None or not is_planned(gpulet) or gpulet.metadata.deletion_timestamp is not None:
            continue
        if key not in leaving and (slot.model.namespace, slot.model.name) in world.models:
            yield key, slot


def _slot_key(slot: Slot) -> tuple[Any, ...]:
    device = slot.device
    return (
        slot.model,
        device.node,
        device.gpu,
        device.profile or "",
        device.start or 0,
        slot.compute_percent,
        slot.ordinal,
    )


def usages(
    world: World, *, leaving: frozenset[Key] = frozenset(), without: frozenset[Key] = frozenset()
) -> tuple[Usage, ...]:
    """Shares the plan must respect: manual, leaving and working Gpulets, and claims that no Gpulet of ours explains."""
    found = [
        _gpulet_usage(world, gpulet)
        for key, gpulet in world.gpulets.items()
        if (gpulet.spec.models is None or not is_planned(gpulet) or key in leaving) and key not in without
    ]
    devices = _devices_by_name(world)
    for key, claim in world.claims.items():
        if key not in world.gpulets and not _of_a_gone_gpulet(claim):
            found += _claim_usages(claim, devices)
    return tuple(
        sorted(found, key=lambda u: (u.device.node, u.device.gpu, u.namespace, u.compute_percent, u.memory_mib))
    )


def _of_a_gone_gpulet(claim: Raw) -> bool:
    """It goes in seconds, with its Gpulet: planning around it would move others for nothing."""
    labels = claim["metadata"].get("labels") or {}
    return labels.get(names.LABEL_ORIGIN) == names.ORIGIN_PLAN and names.LABEL_GPULET in labels


def _gpulet_usage(world: World, gpulet: Gpulet) -> Usage:
    share, tenant = share_of(gpulet.spec), tenant_of(world, gpulet)
    return Usage(
        device=share.device,
        compute_percent=share.compute_percent,
        memory_mib=share.memory_mib,
        clients=share.clients,
        namespace=tenant.namespace,
        isolation=tenant.isolation,
        purpose=tenant.purpose,
    )


def _devices_by_name(world: World) -> dict[tuple[str, str], Device]:
    """(pool, device name) -> what it is."""
    result = {}
    for pool, slices in current_pools(world.slices.values()).items():
        for raw in slices:
            for device in raw["spec"].get("devices") or ():
                values = {
                    name.rsplit("/", 1)[-1]: next(iter(value.values())) for name, value in device["attributes"].items()
                }
                is_mig = values["type"] == "mig"
                result[pool, device["name"]] = Device(
                    raw["spec"]["nodeName"],
                    values["uuid"],
                    values["profile"] if is_mig else None,
                    int(values["placementStart"]) if is_mig else None,
                )
    return result


def _claim_usages(claim: Raw, devices: dict[tuple[str, str], Device]) -> list[Usage]:
    allocation = claim.get("status", {}).get("allocation") or {}
    config = config_in(claim)
    found = []
    for result in (allocation.get("devices") or {}).get("results") or ():
        device = devices.get((result["pool"], result["device"]))
        if result["driver"] != names.DRIVER or device is None:
            continue
        consumed = result.get("consumedCapacity") or {}
        found.append(
            Usage(
                device=device,
                compute_percent=int(quantity(consumed.get("computePercent", "100"))),
                memory_mib=mebibytes(consumed.get("memory", "0")),
                clients=int(quantity(consumed.get("clients", "1"))),
                namespace=claim["metadata"]["namespace"],
                isolation=config.isolation if config is not None else "Namespace",
                purpose="foreign",
            )
        )
    return found


def volume_nodes(world: World, namespace: str, sources: Iterable[ModelSource]) -> tuple[str, ...] | None:
    """Nodes on which the volumes of all ``sources`` can be mounted; None: any (or not known yet)."""
    allowed = [found for source in sources if (found := _nodes_of_volume(world, namespace, source)) is not None]
    return tuple(sorted(set.intersection(*allowed))) if allowed else None


def _nodes_of_volume(world: World, namespace: str, source: ModelSource) -> set[str] | None:
    try:
        claim_name = model_file(source).claim
    except UnsupportedSourceError:
        return None
    claim = world.volume_claims.get((namespace, claim_name)) if claim_name else None
    volume = world.volumes.get(("", claim["spec"].get("volumeName", ""))) if claim else None
    required = ((volume or {}).get("spec", {}).get("nodeAffinity") or {}).get("required")
    if not required:
        return None
    return {name for (_, name), node in world.nodes.items() if _matches(node, required["nodeSelectorTerms"])}


def _matches(node: Raw, terms: list[Raw]) -> bool:
    """A node selector as the scheduler reads it: any term, and in it every expression."""
    labels, fields = node["metadata"].get("labels") or {}, {"metadata.name": node["metadata"]["name"]}
    return any(
        all(_expression_holds(labels, e) for e in term.get("matchExpressions") or ())
        and all(_expression_holds(fields, e) for e in term.get("matchFields") or ())
        for term in terms
        if term.get("matchExpressions") or term.get("matchFields")  # an empty term matches nothing
    )


def _expression_holds(labels: Mapping[str, str], expression: Raw) -> bool:
    value = labels.get(expression["key"])
    values: Sequence[str] = expression.get("values") or ()
    number = int(value) if value is not None and re.fullmatch(r"-?\d+", value) else None
    holds: dict[str, Callable[[], bool]] = {
        "In": lambda: value in values,
        "NotIn": lambda: value not in values,
        "Exists": lambda: value is not None,
        "DoesNotExist": lambda: value is None,
        "Gt": lambda: number is not None and number > int(values[0]),
        "Lt": lambda: number is not None and number < int(values[0]),
    }
    return holds[expression["operator"]]()
