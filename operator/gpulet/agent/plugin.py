"""The kubelet's side: registration and the DRAPlugin service, on sockets of this pod's own.

Two agents of one node serve side by side during a rolling update, so socket names carry the pod's uid.
"""

import asyncio
import errno
import logging
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from gpulet.agent import cdi
from gpulet.agent.claims import ClaimRecord, ClaimRefusedError
from gpulet.agent.health import SERVICES, HealthService
from gpulet.agent.proto import dra_pb2, health_pb2, registration_pb2
from gpulet.agent.refused import tell_refused
from gpulet.agent.said import Said
from gpulet.agent.shares import Shares
from gpulet.agent.waiting import Deadline, DeadlineError
from gpulet.api import names
from gpulet.kube.client import Client
from gpulet.kube.errors import KubeError, NotFoundError, UnavailableError
from gpulet.kube.kinds import RESOURCE_CLAIM
from gpulet.metrics.node import NodeMetrics
from gpulet.nvidia.mps import MpsError
from gpulet.nvidia.source import DeviceError

log = logging.getLogger("gpulet.plugin")

_CALL_S = 40.0
"""The kubelet gives a call 45 s."""
_API_PATIENCE_S = 10.0
_API_CALL_S = 8.0
_API_POLL_S = 0.5
_STOP_S = 45.0
# The string that the kubelet knows the service by is not the service's gRPC path.
_SERVICE_VERSION = "v1.DRAPlugin"
_SERVICE = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
_REGISTRATION = "pluginregistration.Registration"
_SAYABLE = (ClaimRefusedError, DeviceError, MpsError, DeadlineError, KubeError, OSError)
_REMEDIES = {
    errno.ENOSPC: "free some of the node's disk; the kubelet tries again",
    errno.EDQUOT: "raise the quota of the node's disk; the kubelet tries again",
    errno.EROFS: "mount it for writing on the node (AgentConfig names the folder); the kubelet tries again",
    errno.EACCES: "let the agent write there; the kubelet tries again",
}


class Plugin:
    """Serves the kubelet until stopped."""

    def __init__(
        self,
        client: Client,
        shares: Shares,
        *,
        kubelet: Path,
        pod_uid: str,
        registered: Callable[[], None],
        changed: Callable[[], None],
        metrics: NodeMetrics,
        period_s: float = 5.0,
    ) -> None:
        """``registered``: called at each registration; ``changed``: after each share that was made or undone;
        ``period_s``: between two looks at the devices' health."""
        self._client = client
        self._shares = shares
        self._registered = registered
        self._changed = changed
        self._metrics = metrics
        self._said = Said(log)
        self._endpoint = kubelet / "plugins" / names.DRIVER / f"{pod_uid}.sock"
        self._registry = kubelet / "plugins_registry" / f"{names.DRIVER}-{pod_uid}-reg.sock"
        self._servers: list[Any] = []
        self._health = HealthService(shares, period_s=period_s)

    async def start(self) -> None:
        """The service answers before the registration says so."""
        service = {
            "NodePrepareResources": (self._prepare, dra_pb2.NodePrepareResourcesRequest),
            "NodeUnprepareResources": (self._unprepare, dra_pb2.NodeUnprepareResourcesRequest),
        }
        registration = {
            "GetInfo": (self._get_info, registration_pb2.InfoRequest),
            "NotifyRegistrationStatus": (self._notify, registration_pb2.RegistrationStatus),
        }
        for path, name, methods in (
            (self._endpoint, _SERVICE, service),
            (self._registry, _REGISTRATION, registration),
        ):
            path.parent.mkdir(parents=True, exist_ok=True)
            remove_dead_sockets(path.parent, f"{names.DRIVER}-*-reg.sock" if path is self._registry else "*.sock")
            server = grpc.aio.server()
            server.add_generic_rpc_handlers((_handlers(name, methods),))
            if path is self._endpoint:
                server.add_generic_rpc_handlers(tuple(_health_handlers(s, self._health) for s in SERVICES))
            server.add_insecure_port(f"unix:{path}")
            await server.start()
            self._servers.append(server)

    async def stop(self) -> None:
        """Off the kubelet's list first; calls in progress are finished."""
        self._health.stop()
        for server in reversed(self._servers):
            await server.stop(_STOP_S)
        for path in (self._registry, self._endpoint):
            path.unlink(missing_ok=True)

    async def _get_info(self, request: Any, context: Any) -> Any:
        return registration_pb2.PluginInfo(
            type="DRAPlugin",
            name=names.DRIVER,
            endpoint=str(self._endpoint),
            supported_versions=[_SERVICE_VERSION, *SERVICES],
        )

    async def _notify(self, request: Any, context: Any) -> Any:
        if request.plugin_registered:
            log.info("registered with the kubelet")
            self._registered()
        else:
            log.error("the kubelet refuses the registration: %s", request.error)
        return registration_pb2.RegistrationStatusResponse()

    async def _prepare(self, request: Any, context: Any) -> Any:
        deadline = Deadline(_CALL_S)
        response = dra_pb2.NodePrepareResourcesResponse()
        for claim in request.claims:
            what, begun_s = f"prepare {claim.namespace}/{claim.name}", time.monotonic()
            try:
                record = await self._make(claim, deadline)
                answer = dra_pb2.NodePrepareResourceResponse(devices=[_device(record)])
                self._said.well(what)
                log.info("%s: %d %% of %s", what, record.compute_percent, record.device)
            except _SAYABLE as error:
                self._said.trouble(what, error)
                answer = dra_pb2.NodePrepareResourceResponse(error=_sentence(error))
            response.claims[claim.uid].CopyFrom(answer)
            outcome = "error" if answer.error else "ok"
            self._metrics.calls.labels(what.split()[0], outcome).observe(time.monotonic() - begun_s)
        self._changed()
        return response

    async def _make(self, claim: Any, deadline: Deadline) -> ClaimRecord:
        """A share that is true stays true without the API server: the kubelet may ask again after its restart."""
        try:
            raw = await self._read(claim)
        except KubeError as error:
            record = None
            if error.retryable:
                record = await asyncio.to_thread(self._shares.prepared, claim.uid, deadline)
            if record is None:
                raise
            return record
        try:
            return await asyncio.to_thread(self._shares.prepare, raw, claim.uid, deadline)
        except ClaimRefusedError as error:
            if raw["metadata"].get("uid") == claim.uid:
                await tell_refused(self._client, raw, str(error))
            raise

    async def _unprepare(self, request: Any, context: Any) -> Any:
        deadline = Deadline(_CALL_S)
        response = dra_pb2.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            what, begun_s = f"unprepare {claim.namespace}/{claim.name}", time.monotonic()
            answer = dra_pb2.NodeUnprepareResourceResponse()
            try:
                await asyncio.to_thread(self._shares.unprepare, claim.uid, deadline)
                self._said.well(what)
                # Its prepare may have failed to the end.
                self._said.well(f"prepare {claim.namespace}/{claim.name}")
                log.info("%s", what)
            except _SAYABLE as error:
                self._said.trouble(what, error)
                answer.error = _sentence(error)
            response.claims[claim.uid].CopyFrom(answer)
            outcome = "error" if answer.error else "ok"
            self._metrics.calls.labels(what.split()[0], outcome).observe(time.monotonic() - begun_s)
        self._changed()
        return response

    async def _read(self, claim: Any) -> dict[str, Any]:
        """The ResourceClaim; an API server that is away for a moment costs less than the kubelet's next try."""
        patience = Deadline(_API_PATIENCE_S)
        while True:
            try:
                async with asyncio.timeout(_API_CALL_S):
                    return await self._client.get(RESOURCE_CLAIM, claim.name, claim.namespace)
            except NotFoundError as error:
                raise ClaimRefusedError(f"ResourceClaim {claim.namespace}/{claim.name} does not exist") from error
            except TimeoutError:
                failure: KubeError = UnavailableError(f"the API server gave no answer within {_API_CALL_S:g} s")
            except KubeError as error:
                failure = error
            if not failure.retryable or patience.remaining_s <= 0:
                raise failure
            await asyncio.sleep(_API_POLL_S)


def _sentence(error: Exception) -> str:
    """For the pod's event: what the node needs to go on."""
    if isinstance(error, OSError) and error.errno in _REMEDIES:
        return f"{error.strerror}: {error.filename}; {_REMEDIES[error.errno]}"
    return str(error)


def _device(record: ClaimRecord) -> Any:
    return dra_pb2.Device(
        request_names=[record.request],
        pool_name=record.pool,
        device_name=record.device,
        cdi_device_ids=[cdi.cdi_id(record)],
        share_id=record.share_id,
    )


def _handlers(service: str, methods: dict[str, tuple[Any, Any]]) -> Any:
    return grpc.method_handlers_generic_handler(
        service,
        {
            name: grpc.unary_unary_rpc_method_handler(
                method,
                request_deserializer=message.FromString,
                response_serializer=lambda answer: answer.SerializeToString(),
            )
            for name, (method, message) in methods.items()
        },
    )


def _health_handlers(service: str, health: HealthService) -> Any:
    watch = grpc.unary_stream_rpc_method_handler(
        health.watch,
        request_deserializer=health_pb2.NodeWatchResourcesRequest.FromString,
        response_serializer=lambda answer: answer.SerializeToString(),
    )
    return grpc.method_handlers_generic_handler(service, {"NodeWatchResources": watch})


def remove_dead_sockets(folder: Path, pattern: str) -> None:
    """Sockets of agents that were killed: the kubelet would go on dialling them."""
    for path in folder.glob(pattern):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                log.info("removing %s of an agent that is gone", path)
                path.unlink(missing_ok=True)
            except OSError:
                continue
