"""The operator's one configuration file: key ``policy.yaml`` of ConfigMap ``gpulet-policy``, without unknown keys."""

import difflib
import json
from collections.abc import Hashable
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from gpulet.api.base import Percent, Product

Cpu = Annotated[str, Field(pattern=r"^([1-9][0-9]{0,4}|[1-9][0-9]{0,6}m)$")]
Memory = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,8}(Mi|Gi)$")]
Batch = Annotated[int, Field(ge=1, le=65536)]
Image = Annotated[str, Field(pattern=r"^[^\s]+$")]


def _stays_on_its_volume(uri: str) -> str:
    if ".." in uri.split("/"):
        raise ValueError("a path with '..' leaves its volume: write it out")
    return uri


Folder = Annotated[
    str,
    Field(max_length=384, pattern=r"^pvc://[a-z0-9]([-a-z0-9]*[a-z0-9])?/[^\s/][^\s]*$"),
    AfterValidator(_stays_on_its_volume),
]


class PolicyModel(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
    )


class Images(PolicyModel):
    """What runs in pods."""

    serving: Image = "localhost/gpulet-triton:dev"
    tuning: Image = "localhost/gpulet-tuner:dev"


class ProfilingPolicy(PolicyModel):
    """What is measured of a model that has no profile: every percent with every batch."""

    compute_percents: Annotated[list[Percent], Field(min_length=1, max_length=16)] = [10, 20, 30, 40, 50, 60, 80, 100]
    batches: Annotated[list[Batch], Field(min_length=1, max_length=16)] = [1, 2, 4, 8, 16, 32]
    seconds_per_point: Annotated[float, Field(ge=0.1, le=600)] = 5.0
    memory_mebibytes: Annotated[int, Field(ge=64)] = 10240
    """Device memory of the share that is measured."""


class TuningPolicyDefaults(PolicyModel):
    """What `Auto` means in a TuningJob, and what its clients take of the host."""

    clients: Annotated[int, Field(ge=1, le=256)] = 2
    servers: Annotated[int, Field(ge=1, le=64)] = 1
    client_cpu: Cpu = "1"
    client_memory: Memory = "1Gi"
    output: Folder | None = None
    """Where results of spec.tuning go that names no output: pvc://claim/folder, a claim of that name in the model's own
    namespace; /<namespace>/<model> is appended."""


class Policy(PolicyModel):
    headroom: Annotated[float, Field(ge=0, le=5)] = 0.10
    """Planned rate = demand x (1 + headroom)."""
    dead_band: Annotated[float, Field(ge=0, le=1)] = 0.05
    """An observed rate moves the demand only if it left it by more than this fraction."""
    interference_margin: Annotated[float, Field(ge=0, le=2)] = 0.10
    """Latency under MPS neighbours = profiled latency x (1 + margin). MIG alone in its slice has none."""
    transition_reserve: Annotated[int, Field(ge=0)] = 1
    """Empty devices of each product kept for make-before-break; tuning and profiling may use them and yield."""
    fault_domains: bool = False
    """Replicas of a model are on at least two devices, at the price of another GPU if need be, and on two nodes where
    that costs none."""
    empty_nodes: bool = False
    """Among plans of one cost, that which leaves more nodes without a serving share, for an autoscaler to take."""
    node_failure_headroom: bool = False
    """Only as much is placed as still fits when the node with most GPUs is lost."""
    period_seconds: Annotated[float, Field(ge=0.1, le=3600)] = 10.0
    """The longest time between two looks at the cluster."""
    unusable_after_seconds: Annotated[float, Field(gt=0, le=3600)] = 15.0
    """A Gpulet's pod that the scheduler has refused for so long is planned elsewhere."""
    images: Images = Images()
    profiling: ProfilingPolicy = ProfilingPolicy()
    tuning: TuningPolicyDefaults = TuningPolicyDefaults()
    host_cpu: Cpu = "1"
    """Host CPU of a serving pod whose template names none (real GPUs)."""
    host_memory: Memory = "1Gi"
    """Host memory of a serving pod whose template names none."""
    prices: dict[Product, Annotated[float, Field(gt=0)]] = {}
    """Price of a GPU by product; absent: 1."""


class PolicyError(ValueError):
    """The file cannot be used: one line a fault, each with file, key and remedy."""


def load_policy(path: Path) -> Policy:
    """The policy in a file; raises PolicyError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PolicyError(f"{path}: cannot be read ({error}): check the path and that it is UTF-8 text") from None
    return read_policy(text, source=str(path))


def read_policy(text: str, *, source: str) -> Policy:
    """The policy in YAML text; an empty text is the default policy. ``source`` begins every line of a PolicyError."""
    try:
        value = yaml.load(text, Loader=_UniqueKeys)
    except yaml.YAMLError as error:
        words = " ".join(str(error).split())
        raise PolicyError(f"{source}: no YAML: {words}: mend the syntax") from None
    if value is None:
        return Policy()
    if not isinstance(value, dict):
        raise PolicyError(f"{source}: a {type(value).__name__}: write keys and values, such as `headroom: 0.1`")
    try:
        # Through JSON, because there pydantic is strict about scalars alone: "0.1" is no number, 1 is no text.
        return Policy.model_validate_json(json.dumps(value, default=str), strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        lines = [f"{source}: {_fault(dict(fault))}" for fault in error.errors()]
        raise PolicyError("\n".join(lines)) from None


def _fault(fault: dict[str, Any]) -> str:
    key = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        known = _keys(fault["loc"][:-1])
        near = difflib.get_close_matches(str(fault["loc"][-1]), known, n=1)
        remedy = f"did you mean {near[0]}?" if near else f"remove it; known are {', '.join(sorted(known))}"
        return f"{key}: no such key: {remedy}"
    return f"{key}: {fault['msg']}, not {fault['input']!r}: correct it or remove the key for its default"


def _keys(location: tuple[str | int, ...]) -> list[str]:
    model: type[BaseModel] = Policy
    for part in location:
        field = next(f for f in model.model_fields.values() if f.alias == part)
        assert isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
        model = field.annotation
    return [field.alias or "" for field in model.model_fields.values()]


class _UniqueKeys(yaml.SafeLoader):
    """YAML's usual reading lets the last of two equal keys win in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key.value} is there twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)
