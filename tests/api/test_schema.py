"""The schema generator: what Kubernetes has no words for is refused with its path, the rest is translated."""

from datetime import timedelta
from typing import Annotated, Any, Literal

import pytest
from pydantic import ConfigDict, Field

from gpulet.api.base import AS_SET, KubeModel
from gpulet.api.cel import rule, rules
from gpulet.api.schema import NotStructuralError, structural

Short = Annotated[str, Field(max_length=8)]


class Part(KubeModel):
    """A part."""

    model_config = ConfigDict(json_schema_extra=rules(rule("has(self.size)", "size: give it")))
    size: Annotated[float, Field(gt=0, lt=10)] | None = None


class Tree(KubeModel):
    children: Annotated[list["Tree"], Field(max_length=2)] = []


class Tuple(KubeModel):
    ports: tuple[int, int]


class Duration(KubeModel):
    timeout: timedelta


class Union(KubeModel):
    choice: Part | Short


class Open(KubeModel):
    anything: dict[str, Any] = {}


class Untyped(KubeModel):
    thing: Any


class LongText(KubeModel):
    text: str


class LongList(KubeModel):
    texts: list[Short]


class LongMap(KubeModel):
    texts: dict[str, Short]


class Unbounded(KubeModel):
    number: int | Literal["Auto"] = "Auto"


@pytest.mark.parametrize(
    ("model", "field"),
    [
        (Tree, "children"),
        (Tuple, "ports"),
        (Duration, "timeout"),
        (Union, "choice"),
        (Open, "anything"),
        (Untyped, "thing"),
        (LongText, "text"),
        (LongList, "texts"),
        (LongMap, "texts"),
        (Unbounded, "number"),
    ],
)
def test_what_a_crd_cannot_express_is_refused_by_path(model: type[KubeModel], field: str) -> None:
    with pytest.raises(NotStructuralError, match=f"^{field}"):
        structural(model)


class Whole(KubeModel):
    part: Annotated[Part, Field(json_schema_extra=rules(rule("self == oldSelf", "part: is immutable")))]
    """The field's own words win over ``Part``'s."""
    batch: Annotated[int, Field(ge=1, le=9)] | Literal["Auto"] = "Auto"
    kind: Literal["one"] = "one"
    names: Annotated[list[Short], Field(max_length=3, json_schema_extra=AS_SET)] = []
    labels: Annotated[dict[str, Short], Field(max_length=3)] = {}
    level: float = 5.0
    off: bool = False


def test_translation_keeps_bounds_rules_and_the_defaults_worth_seeing() -> None:
    """Failure case E7: defaults are explicit."""
    properties = structural(Whole)["properties"]
    assert properties["part"]["description"] == "The field's own words win over `Part`'s."
    assert [r["message"] for r in properties["part"]["x-kubernetes-validations"]] == [
        "size: give it",
        "part: is immutable",
    ]
    size = {"type": "number", "minimum": 0, "exclusiveMinimum": True, "maximum": 10, "exclusiveMaximum": True}
    assert properties["part"]["properties"]["size"] == size
    assert properties["kind"] == {"type": "string", "enum": ["one"], "default": "one"}
    assert properties["names"]["x-kubernetes-list-type"] == "set"
    defaults = {name: field["default"] for name, field in properties.items() if "default" in field}
    assert defaults == {"batch": "Auto", "kind": "one", "level": 5, "off": False}
    assert isinstance(defaults["level"], int), "the API server writes a whole number back without a point"


def test_a_number_or_a_word_has_its_bounds_in_a_rule() -> None:
    """Failure case G1: a quoted number is no number."""
    batch = structural(Whole)["properties"]["batch"]
    assert batch["x-kubernetes-int-or-string"] is True
    assert batch["anyOf"] == [{"type": "integer"}, {"type": "string"}]
    (bounds,) = batch["x-kubernetes-validations"]
    assert bounds["rule"] == "type(self) == string ? self == 'Auto' : (self >= 1 && self <= 9)"


def test_a_status_has_no_defaults() -> None:
    assert "default" not in str(structural(Whole, defaults=False))
