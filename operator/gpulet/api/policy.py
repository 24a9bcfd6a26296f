"""The operator's one configuration file: key ``policy.yaml`` of ConfigMap ``gpulet-policy``, without unknown keys."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from gpulet.api.base import Percent


class PolicyModel(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, use_attribute_docstrings=True
    )


class Images(PolicyModel):
    serving: str = "localhost/gpulet-triton:dev"
    tuning: str = "localhost/gpulet-tuner:dev"


class ProfilingPolicy(PolicyModel):
    compute_percents: Annotated[list[Percent], Field(min_length=1)] = [10, 20, 30, 40, 50, 60, 80, 100]
    batches: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)] = [1, 2, 4, 8, 16, 32]
    seconds_per_point: Annotated[float, Field(gt=0)] = 5.0
    memory_mebibytes: Annotated[int, Field(ge=64)] = 10240


class TuningPolicyDefaults(PolicyModel):
    clients: Annotated[int, Field(ge=1)] = 2
    servers: Annotated[int, Field(ge=1)] = 1
    client_cpu: str = "1"
    client_memory: str = "1Gi"


class Policy(PolicyModel):
    headroom: Annotated[float, Field(ge=0, le=5)] = 0.10
    """Planned rate = demand x (1 + headroom)."""
    dead_band: Annotated[float, Field(ge=0, le=1)] = 0.05
    """An observed rate moves the demand only if it left it by more than this fraction."""
    interference_margin: Annotated[float, Field(ge=0, le=2)] = 0.10
    """Latency under MPS neighbours = profiled latency x (1 + margin). MIG alone in its slice has none."""
    transition_reserve: Annotated[int, Field(ge=0)] = 1
    """Empty devices of each product kept for make-before-break; tuning and profiling may use them and yield."""
    period_seconds: Annotated[float, Field(gt=0)] = 10.0
    unusable_after_seconds: Annotated[float, Field(gt=0)] = 15.0
    """A Gpulet's pod that the scheduler has refused for so long is planned elsewhere."""
    images: Images = Images()
    profiling: ProfilingPolicy = ProfilingPolicy()
    tuning: TuningPolicyDefaults = TuningPolicyDefaults()
    host_cpu: str = "1"
    """Host CPU of a serving pod whose template names none (real GPUs)."""
    host_memory: str = "1Gi"
    prices: dict[str, Annotated[float, Field(gt=0)]] = {}
    """Price of a GPU by product; absent: 1."""
