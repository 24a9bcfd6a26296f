"""Whether the API server knows the fields that this version writes: an older CRD would drop them in silence (L3)."""

import asyncio
import logging

from gpulet.api.crds import DEFINITIONS, missing_fields
from gpulet.kube.client import Client
from gpulet.kube.errors import KubeError
from gpulet.kube.kinds import CUSTOM_RESOURCE_DEFINITION

log = logging.getLogger("gpulet.schemas")

_RETRY_S = 5.0
_NAMED = 5


async def complaints(client: Client) -> list[str]:
    """What is missing of each CustomResourceDefinition, one line each; empty: all that we write is kept.

    Raises KubeError if they cannot be read.
    """
    found = []
    for definition in DEFINITIONS:
        items, _ = await client.list(CUSTOM_RESOURCE_DEFINITION, fields=f"metadata.name={definition.name}")
        missing = missing_fields(items[0]) if items else ["everything"]
        if missing:
            more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
            found.append(f"CustomResourceDefinition {definition.name} lacks {', '.join(missing[:_NAMED])}{more}")
    return found


async def until_known(client: Client) -> None:
    """Returns when the served schemas are those of this version; says once what is wrong, and waits.

    Waiting (not ready, no Lease) is harmless: an older controller goes on, and served models serve.
    """
    said: list[str] = []
    while True:
        try:
            found = await complaints(client)
        except KubeError as error:
            found = [str(error)]
        if not found:
            return
        if found != said:
            log.error("%s; apply the crds/ of this version: until then this controller only waits", "; ".join(found))
            said = found
        await asyncio.sleep(_RETRY_S)
