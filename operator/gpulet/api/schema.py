"""From a pydantic model to a CRD's structural schema. What Kubernetes cannot express is an error, never dropped."""

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from gpulet.api.cel import rule

Node = dict[str, Any]
Path = tuple[str, ...]

_RULES = "x-kubernetes-validations"
_KEEP = frozenset(
    {"type", "properties", "required", "items", "additionalProperties", "enum", "format", "pattern", "description"}
    | {"default", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength"}
    | {"minItems", "maxItems", "minProperties", "maxProperties", "anyOf"}
)
_DROP = frozenset({"title", "examples", "deprecated", "$comment"})
_FORMATS = frozenset({"date-time", "date", "int32", "int64", "float", "double", "byte", "uuid", "uri", "hostname"})


class NotStructuralError(TypeError):
    """A field that a CRD cannot express; the message names it and the remedy."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{'.'.join(path) or '<root>'}: {why}")


class _CrdJsonSchema(GenerateJsonSchema):
    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        """`X | None` means "may be absent": X without null, as absent and null are two things to GitOps tools."""
        return self.generate_inner(schema["schema"])


def structural(model: type[BaseModel], *, defaults: bool = True) -> Node:
    """The structural schema of ``model``, references inlined, with the ``defaults`` that a user should see.

    Shown are all that are not empty: an absent object, list or text stays absent, so that what is read back
    is what was applied plus decisions (failure cases E7, I1). Every text, list and map has to be bounded, because
    the API server charges CEL rules for the largest value that the schema admits. Raises NotStructuralError.
    """
    raw = model.model_json_schema(by_alias=True, schema_generator=_CrdJsonSchema, mode="validation")
    return _Inliner(raw.pop("$defs", {}), defaults).node(raw, (), ())


class _Inliner:
    def __init__(self, definitions: dict[str, Node], defaults: bool) -> None:
        self._definitions = definitions
        self._defaults = defaults

    def node(self, raw: Node, path: Path, seen: Path) -> Node:
        """``seen``: the definitions on the way here, to find recursion."""
        schema, seen = self._inlined(raw, path, seen)
        schema = {key: value for key, value in schema.items() if key not in _DROP}
        default = _shown(schema.pop("default", None))
        if self._defaults and default is not None:
            schema["default"] = default
        _translate(schema, path)
        _union(schema, path)
        self._children(schema, path, seen)
        _bounded(schema, path)
        if unknown := sorted(k for k in schema if k not in _KEEP and not k.startswith("x-kubernetes-")):
            raise NotStructuralError(path, f"CRD schemas know no {', '.join(unknown)}")
        return schema

    def _inlined(self, raw: Node, path: Path, seen: Path) -> tuple[Node, Path]:
        schema = dict(raw)
        if len(schema.get("allOf", ())) == 1:
            schema = _merged(schema.pop("allOf")[0], schema)
        while reference := schema.pop("$ref", None):
            name = reference.rsplit("/", 1)[1]
            if name in seen:
                raise NotStructuralError(path, f"{name} is recursive: a CRD schema has no references")
            schema, seen = _merged(self._definitions[name], schema), (*seen, name)
        return schema, seen

    def _children(self, schema: Node, path: Path, seen: Path) -> None:
        kind = schema.get("type")
        if kind == "object" and "properties" in schema:
            # Unknown fields are the API server's business: pruned, or refused under strict field validation.
            schema.pop("additionalProperties", None)
            schema["properties"] = {k: self.node(v, (*path, k), seen) for k, v in schema["properties"].items()}
        elif kind == "object":
            values = schema.get("additionalProperties")
            if not isinstance(values, dict) or not values:
                raise NotStructuralError(path, "an open object: name its fields, or give its values a type")
            schema["additionalProperties"] = self.node(values, (*path, "*"), seen)
        elif kind == "array":
            schema["items"] = self.node(schema["items"], (*path, "[]"), seen)
        elif kind is None and "x-kubernetes-int-or-string" not in schema:
            raise NotStructuralError(path, "no type")


def _merged(base: Node, over: Node) -> Node:
    """``over`` wins; CEL rules of both hold."""
    merged = base | over
    if _RULES in base and _RULES in over:
        merged[_RULES] = base[_RULES] + over[_RULES]
    return merged


def _translate(schema: Node, path: Path) -> None:
    """Spellings of JSON Schema 2020 that OpenAPI v3.0 has otherwise."""
    if "const" in schema:
        schema["enum"] = [schema.pop("const")]
    if schema.pop("uniqueItems", False):
        schema["x-kubernetes-list-type"] = "set"
    for side, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if side in schema:
            schema[bound], schema[side] = schema[side], True
    if "description" in schema:
        schema["description"] = schema["description"].replace("``", "`")
    if "prefixItems" in schema:
        raise NotStructuralError(path, "a tuple has no structural form: use a model or a list")
    if schema.get("format") == "duration":
        raise NotStructuralError(path, "durations are written differently in Kubernetes: use a number with its unit")
    if "format" in schema and schema["format"] not in _FORMATS:
        raise NotStructuralError(path, f"format {schema['format']!r} is not known to Kubernetes")


def _union(schema: Node, path: Path) -> None:
    """The one union that Kubernetes has: a whole number or a word. Its bounds become a CEL rule."""
    if "oneOf" in schema:
        raise NotStructuralError(path, "a union of types: use sibling optional fields and one CEL rule")
    branches = {b.get("type"): b for b in schema.get("anyOf", ())}
    if not branches:
        return
    word = branches.get("string", {}).get("const")
    if set(branches) != {"integer", "string"} or word is None:
        raise NotStructuralError(path, "a union of types: use sibling optional fields and one CEL rule")
    low, high = branches["integer"].get("minimum"), branches["integer"].get("maximum")
    if low is None or high is None:
        raise NotStructuralError(path, "a number or a word: give the number a minimum and a maximum")
    schema.pop("type", None)
    schema["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    schema["x-kubernetes-int-or-string"] = True
    schema["maxLength"] = len(word)
    message = f"give {word} or a whole number from {low} to {high}, without quotes"
    bounds = rule(f"type(self) == string ? self == '{word}' : (self >= {low} && self <= {high})", message)
    schema[_RULES] = [bounds, *schema.get(_RULES, ())]


def _bounded(schema: Node, path: Path) -> None:
    limit = {"string": "maxLength", "array": "maxItems"}.get(schema.get("type", ""))
    if schema.get("type") == "object" and "properties" not in schema:
        limit = "maxProperties"
    if limit is None or limit in schema or "enum" in schema or schema.get("format") == "date-time":
        return
    raise NotStructuralError(path, f"no {limit}: bound every text, list and map, CEL rules are charged by size")


def _shown(default: Any) -> Any:
    """The default as a schema carries it, None if it is empty; a whole float as the API server writes it back."""
    if isinstance(default, dict):
        kept = {key: shown for key, inner in default.items() if (shown := _shown(inner)) is not None}
        return kept or None
    if isinstance(default, float) and default.is_integer():
        return int(default)
    return None if default in ("", []) else default
