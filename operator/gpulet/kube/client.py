"""A handful of verbs on plain dicts. The ``kubernetes`` library brings configuration, credentials and TLS.

Its typed models are not used: decoding 5,000 pods with them takes ten seconds and blocks the loop, and a typed
read-modify-write loses fields that are newer than the library. Importing ``kubernetes.aio`` for configuration alone
costs 21 MB beside aiohttp (measured: 46 MB for both), the typed clients would cost 40 MB more.
"""

import json
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config

from gpulet.api import names
from gpulet.kube.errors import TRANSPORT_ERRORS, ConflictError, KubeError, NotFoundError, UnavailableError, error_of
from gpulet.kube.kinds import Kind, kind_of

Raw = dict[str, Any]
_APPLY = "application/apply-patch+yaml"
_MERGE = "application/merge-patch+json"
_PAGE = 500
_DEFAULT_KUBECONFIG = "~/.kube/config"
_REQUEST_TIMEOUT_S = 30.0


async def load_configuration(kubeconfig: Path | None = None) -> Configuration:
    """Of the pod we run in, else of ``kubeconfig`` or $KUBECONFIG; raises KubeError if there is neither."""
    configuration = Configuration()
    if kubeconfig is None:
        try:
            load_incluster_config(configuration)
            return configuration
        except ConfigException:
            pass
    looked_at = str(kubeconfig or os.environ.get("KUBECONFIG") or _DEFAULT_KUBECONFIG)
    try:
        _find_one(looked_at)
        await load_kube_config(str(kubeconfig) if kubeconfig else None, client_configuration=configuration)
    except (ConfigException, OSError) as error:
        raise KubeError(
            f"no cluster: not in a pod, and the kubeconfig cannot be used: {looked_at}: {error}. Give "
            "--kubeconfig FILE or export KUBECONFIG=FILE (of the demo: export KUBECONFIG=$(make -s kubeconfig))"
        ) from error
    return configuration


def _find_one(paths: str) -> None:
    """The library would write to stderr that there is none, and then name a key that is missing in it."""
    if not any(Path(path).expanduser().is_file() for path in paths.split(os.pathsep)):
        raise ConfigException("no such file")


class Client:
    """One connection pool to one API server. Use as an async context manager."""

    def __init__(self, configuration: Configuration, *, field_manager: str = names.FIELD_MANAGER) -> None:
        self._configuration = configuration
        self._field_manager = field_manager
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=_REQUEST_TIMEOUT_S)
        connector = aiohttp.TCPConnector(ssl=_tls(self._configuration), limit=32)
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Raw:
        """One object; raises NotFoundError."""
        return await self._call("GET", kind.path(namespace, name))

    async def list(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        labels: str | None = None,
        fields: str | None = None,
    ) -> tuple[list[Raw], str]:
        """All objects that match, and the list's resourceVersion to watch from. Read in pages."""
        query = _query(labelSelector=labels, fieldSelector=fields, limit=str(_PAGE))
        items: list[Raw] = []
        while True:
            page = await self._call("GET", kind.path(namespace), query=query)
            # Items of a list carry neither apiVersion nor kind.
            items += [{"apiVersion": kind.api_version, "kind": kind.kind} | item for item in page["items"] or ()]
            token = page["metadata"].get("continue")
            if not token:
                return items, str(page["metadata"]["resourceVersion"])
            query = query | {"continue": token}

    async def watch(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        version: str,
        labels: str | None = None,
        fields: str | None = None,
        silence_s: float = 70.0,
    ) -> AsyncIterator[Raw]:
        """Events {type, object} from ``version`` on, bookmarks included, until the stream ends or falls silent.

        Raises GoneError if ``version`` is too old, UnavailableError if the stream breaks.
        """
        query = _query(
            labelSelector=labels,
            fieldSelector=fields,
            watch="true",
            allowWatchBookmarks="true",
            resourceVersion=version,
        )
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=silence_s)
        what = f"watch {kind.plural}"
        try:
            async with self._request("GET", kind.path(namespace), query=query, timeout=timeout) as response:
                if response.status >= 400:
                    raise error_of(response.status, await response.text(), what)
                async for line in _lines(response):
                    event: Raw = json.loads(line)
                    if event["type"] == "ERROR":
                        status = event["object"]
                        raise error_of(int(status.get("code", 500)), json.dumps(status), what)
                    yield event
        except (*TRANSPORT_ERRORS, ConfigException, ValueError) as error:
            raise UnavailableError(f"{what}: {error or type(error).__name__}") from error

    async def apply(self, manifest: Mapping[str, Any], *, force: bool = True) -> Raw:
        """Server-side apply under our field manager: creates the object, or takes exactly the named fields."""
        return await self._apply(manifest, subresource="", force=force)

    async def apply_status(self, manifest: Mapping[str, Any], *, force: bool = True) -> Raw:
        """The same for the status subresource. ``manifest``: apiVersion, kind, metadata, status."""
        return await self._apply(manifest, subresource="/status", force=force)

    async def create(self, manifest: Mapping[str, Any], *, dry_run: bool = False) -> Raw:
        """Raises ConflictError if the object exists, InvalidError also for unknown fields."""
        kind = kind_of(dict(manifest))
        path = kind.path(manifest["metadata"].get("namespace"))
        query = {"fieldManager": self._field_manager, "fieldValidation": "Strict"}
        if dry_run:
            query["dryRun"] = "All"
        return await self._call("POST", path, query=query, body=manifest)

    async def replace(self, manifest: Mapping[str, Any]) -> Raw:
        """PUT with the resourceVersion in ``manifest``; raises ConflictError if the object has moved on."""
        kind, metadata = kind_of(dict(manifest)), manifest["metadata"]
        path = kind.path(metadata.get("namespace"), metadata["name"])
        return await self._call("PUT", path, query={"fieldManager": self._field_manager}, body=manifest)

    async def merge(self, kind: Kind, name: str, namespace: str | None, patch: Mapping[str, Any]) -> Raw:
        """JSON merge patch."""
        query = {"fieldManager": self._field_manager}
        return await self._call("PATCH", kind.path(namespace, name), query=query, body=patch, content_type=_MERGE)

    async def delete(
        self,
        kind: Kind,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        grace_s: int | None = None,
    ) -> None:
        """Delete in the background; that it is gone already (or is another by now) is success."""
        options: Raw = {"propagationPolicy": "Background"}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        try:
            await self._call("DELETE", kind.path(namespace, name), body=options)
        except (NotFoundError, ConflictError):
            return

    async def _apply(self, manifest: Mapping[str, Any], *, subresource: str, force: bool) -> Raw:
        kind, metadata = kind_of(dict(manifest)), manifest["metadata"]
        path = kind.path(metadata.get("namespace"), metadata["name"]) + subresource
        query = {"fieldManager": self._field_manager, "force": "true" if force else "false"}
        return await self._call("PATCH", path, query=query, body=manifest, content_type=_APPLY)

    async def _call(
        self,
        verb: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> Raw:
        data = None if body is None else json.dumps(body).encode()
        try:
            async with self._request(verb, path, query=query, data=data, content_type=content_type) as response:
                text = await response.text()
                if response.status >= 400:
                    raise error_of(response.status, text, f"{verb} {path}")
                answer: Raw = json.loads(text)
                return answer
        except (*TRANSPORT_ERRORS, ConfigException, ValueError) as error:
            raise UnavailableError(f"{verb} {path}: {error or type(error).__name__}") from error

    def _request(
        self,
        verb: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        data: bytes | None = None,
        content_type: str = "application/json",
        timeout: aiohttp.ClientTimeout | None = None,
    ) -> "_Request":
        if self._session is None:
            raise RuntimeError("the client is used outside its context")
        options: Raw = {"params": query, "data": data, "headers": {"Content-Type": content_type}}
        if timeout is not None:
            options["timeout"] = timeout
        return _Request(self._session, self._configuration, verb, self._configuration.host + path, options)


class _Request:
    """One request with the credentials of this moment: tokens rotate while we run (failure case M6)."""

    def __init__(
        self, session: aiohttp.ClientSession, configuration: Configuration, verb: str, url: str, options: Raw
    ) -> None:
        self._session, self._configuration = session, configuration
        self._verb, self._url, self._options = verb, url, options
        self._context: Any = None

    async def __aenter__(self) -> aiohttp.ClientResponse:
        for auth in (await self._configuration.auth_settings()).values():
            if auth["in"] == "header" and auth["value"]:
                self._options["headers"][auth["key"]] = auth["value"]
        self._context = self._session.request(self._verb, self._url, **self._options)
        response: aiohttp.ClientResponse = await self._context.__aenter__()
        return response

    async def __aexit__(self, *error: Any) -> None:
        await self._context.__aexit__(*error)


def _tls(configuration: Configuration) -> ssl.SSLContext | bool:
    if not configuration.host.startswith("https"):
        return False
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert, cadata=configuration.ca_cert_data)
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, keyfile=configuration.key_file)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _query(**values: str | None) -> dict[str, str]:
    return {key: value for key, value in values.items() if value is not None}


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Whole lines of a stream; half a line at its end is dropped. Lines may be longer than aiohttp's limit."""
    buffer = b""
    async for chunk in response.content.iter_any():
        buffer += chunk
        *complete, buffer = buffer.split(b"\n")
        for line in complete:
            if line.strip():
                yield line
