"""The first inferences of a model are slow, and no caller should pay for them."""

import logging
from concurrent.futures import ThreadPoolExecutor

from gpulet.api.workload import ServedModel
from gpulet.v2.client import V2Client, V2Error

log = logging.getLogger("gpulet.serve")

ROUNDS = 3
_TIMEOUT_S = 120.0
"""A model that hangs (case A5) is an error and never ready."""


def warm_up(client: V2Client, model: ServedModel, *, http_port: int) -> None:
    """A few full batches, as many at a time as there are instances, so that each gets some. Raises V2Error."""
    try:
        body, headers = client.batch(client.metadata(model.name), model.batch)
    except ValueError as error:
        log.warning("model %s is not warmed up: %s", model.name, error)
        return

    def rounds(_: int) -> None:
        with V2Client(http_port, timeout_s=_TIMEOUT_S) as own:
            for _ in range(ROUNDS):
                own.infer(model.name, body, headers)

    try:
        with ThreadPoolExecutor(model.instances) as pool:
            list(pool.map(rounds, range(model.instances)))
    except V2Error as error:
        raise V2Error(f"its first inference failed: {error}") from error
