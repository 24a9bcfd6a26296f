"""What can go wrong between us and the API server, in one family."""

import asyncio
import json

import aiohttp


class KubeError(Exception):
    """A request failed. ``retryable``: the same request may succeed later without anybody changing anything."""

    retryable = False


class NotFoundError(KubeError):
    """404: the object or its kind does not exist."""


class ConflictError(KubeError):
    """409: somebody else was first (resourceVersion, an existing name, a field owned by another)."""

    retryable = True


class InvalidError(KubeError):
    """400 or 422: the API server does not accept the object; the message names the field."""


class ForbiddenError(KubeError):
    """403: RBAC, a quota or an admission policy said no."""


class GoneError(KubeError):
    """410: the resourceVersion is too old; list again."""

    retryable = True


class UnavailableError(KubeError):
    """429, 5xx, a time-out or no connection."""

    retryable = True


_BY_STATUS: dict[int, type[KubeError]] = {
    400: InvalidError,
    # A token that is being rotated says nothing of what we may do (failure case M6).
    401: UnavailableError,
    403: ForbiddenError,
    404: NotFoundError,
    405: InvalidError,
    409: ConflictError,
    410: GoneError,
    413: InvalidError,
    415: InvalidError,
    422: InvalidError,
}

TRANSPORT_ERRORS = (aiohttp.ClientError, asyncio.TimeoutError, ConnectionError, OSError)


def error_of(status: int, body: str, what: str) -> KubeError:
    """The error that an HTTP answer means. ``what``: verb and object, for the message."""
    try:
        message = json.loads(body).get("message", body)
    except (ValueError, AttributeError):
        message = body
    return _BY_STATUS.get(status, UnavailableError)(f"{what}: {str(message)[:1000]} (HTTP {status})")
