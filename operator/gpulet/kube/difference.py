"""Whether an applied intent already holds. Pure: what is equal costs no request."""

from collections.abc import Mapping
from typing import Any

_LIST_KEYS = ("name", "type", "key", "uid", "port", "containerPort", "mountPath", "ip")


def holds(current: Any, intent: Any) -> bool:
    """Whether every value of ``intent`` is in ``current``, where the API server may have added defaults.

    Lists of objects are matched by the first usual merge key that tells their items apart, else by position; two
    tolerations may have the same key. An additional item is a difference.
    """
    if isinstance(intent, Mapping):
        return isinstance(current, Mapping) and all(
            holds(current[key], value) if key in current else _is_empty(value) for key, value in intent.items()
        )
    if isinstance(intent, list):
        return isinstance(current, list) and _list_holds(current, intent)
    return bool(current == intent)


def _list_holds(current: list[Any], intent: list[Any]) -> bool:
    key = next((k for k in _LIST_KEYS if _tells_apart(k, intent) and _tells_apart(k, current)), None)
    if key is None:
        return len(current) == len(intent) and all(holds(c, i) for c, i in zip(current, intent, strict=True))
    by_key = {item.get(key): item for item in current if isinstance(item, Mapping)}
    return len(current) == len(intent) and all(i[key] in by_key and holds(by_key[i[key]], i) for i in intent)


def _tells_apart(key: str, items: list[Any]) -> bool:
    """Whether every item has a value of its own at ``key``."""
    values = [item[key] for item in items if isinstance(item, Mapping) and key in item]
    return len(values) == len(items) and all(values.count(value) == 1 for value in values)


def _is_empty(value: Any) -> bool:
    """The API server does not store an empty map or list of most types."""
    return isinstance(value, Mapping | list) and not value
