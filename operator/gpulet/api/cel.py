"""CEL rules of the schemas: what one field's bounds cannot say. The API server checks them; no webhook is needed."""

from typing import Any

Extra = dict[str, Any]
_KEY = "x-kubernetes-validations"


def rule(expression: str, message: str, *, field: str | None = None) -> Extra:
    """One rule. ``message`` names the field and the remedy; ``field`` is the JSON path below the rule's place."""
    made: Extra = {"rule": expression, "message": message}
    if field is not None:
        made["fieldPath"] = f".{field}"
    return made


def rules(*items: Extra) -> Extra:
    """For ``json_schema_extra`` of a field or a model."""
    return {_KEY: list(items)}


def immutable(kind: str) -> Extra:
    """A field, or a whole spec, that is decided once. The server puts its path before the message."""
    return rule("self == oldSelf", f"is immutable: create a new {kind} instead")


def unchanging(kind: str, *fields: str) -> list[Extra]:
    """Optional fields of a spec that are decided once; for the spec, for a rule on a field misses that it goes."""
    return [
        rule(
            f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name})",
            f"{name} is immutable: create a new {kind} instead",
            field=name,
        )
        for name in fields
    ]


def exactly_one_of(*fields: str) -> Extra:
    """Among optional siblings."""
    given = " + ".join(f"(has(self.{name}) ? 1 : 0)" for name in fields)
    return rule(f"{given} == 1", f"give exactly one of {', '.join(fields[:-1])} and {fields[-1]}")


# What would let a workload out of its share, or would collide with what Gpulet sets itself (failure case K5).
_RESERVED_ENVIRONMENT = (
    "^(CUDA_MPS_.*|CUDA_VISIBLE_DEVICES|CUDA_DISABLE_CONTROL|NVIDIA_.*|GPULET_.*|LD_.*|HOME|POD_IP)$"
)
RESERVED_ENVIRONMENT = rules(
    rule(
        f"!self.matches('{_RESERVED_ENVIRONMENT}')",
        "this environment name is Gpulet's (CUDA_MPS_*, CUDA_VISIBLE_DEVICES, CUDA_DISABLE_CONTROL, NVIDIA_*, "
        "GPULET_*, LD_*, HOME, POD_IP): remove it; a share is changed by slo, load and sharing",
    )
)

# cdi.k8s.io annotations would make the runtime inject another claim's device.
_RESERVED_KEY = (
    "^(([^/]+[.])?gpulet[.]dev/.*|app[.]kubernetes[.]io/managed-by|cdi[.]k8s[.]io/.*|resource[.]kubernetes[.]io/.*)$"
)
RESERVED_KEYS = rule(
    f"self.all(key, !key.matches('{_RESERVED_KEY}'))",
    "keys of gpulet.dev, cdi.k8s.io, resource.kubernetes.io and app.kubernetes.io/managed-by are reserved: remove them",
)
LABELS = rules(
    RESERVED_KEYS,
    rule(
        "self.all(key, !format.qualifiedName().validate(key).hasValue() "
        "&& !format.labelValue().validate(self[key]).hasValue())",
        "a key or a value is no valid label: letters, digits, '-', '_' and '.', at most 63 characters",
    ),
)
ANNOTATIONS = rules(
    RESERVED_KEYS,
    rule(
        "self.all(key, !format.qualifiedName().validate(key.lowerAscii()).hasValue())",
        "a key is no valid annotation: an optional DNS prefix and '/', then at most 63 characters",
    ),
)
