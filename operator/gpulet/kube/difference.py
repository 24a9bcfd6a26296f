"""Whether an applied intent already holds. Pure: what is equal costs no request."""

from collections.abc import Mapping
from typing import Any

_LIST_KEYS = ("name", "type", "key", "uid", "port", "containerPort", "mountPath", "ip")


def holds(current: Any, intent: Any) -> bool:
    """Whether every value of ``intent`` is in ``current``, where the API server may have added defaults.

    Lists of objects are matched by their usual merge keys where all items have one, else by position and length.
    """
    if isinstance(intent, Mapping):
        return isinstance(current, Mapping) and all(
            key in current and holds(current[key], value) for key, value in intent.items()
        )
    if isinstance(intent, list):
        return isinstance(current, list) and _list_holds(current, intent)
    return bool(current == intent)


def _list_holds(current: list[Any], intent: list[Any]) -> bool:
    key = next((k for k in _LIST_KEYS if intent and all(isinstance(i, Mapping) and k in i for i in intent)), None)
    if key is None:
        return len(current) == len(intent) and all(holds(c, i) for c, i in zip(current, intent, strict=True))
    by_key = {item.get(key): item for item in current if isinstance(item, Mapping)}
    return len(current) == len(intent) and all(i[key] in by_key and holds(by_key[i[key]], i) for i in intent)
