"""``gpulet agent``: the node's part, from configuration to running tasks."""

import asyncio
import contextlib
import errno
import fcntl
import logging
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from gpulet.agent import tmpfs
from gpulet.agent.coexistence import Coexistence
from gpulet.agent.config import AgentConfig, ConfigurationError, Identity, load
from gpulet.agent.daemons import Daemons
from gpulet.agent.exporter import serve
from gpulet.agent.health_events import HealthEvents
from gpulet.agent.plugin import Plugin
from gpulet.agent.publish import Publisher
from gpulet.agent.said import Said
from gpulet.agent.shares import Shares
from gpulet.agent.waiting import Deadline, DeadlineError
from gpulet.agent.watcher import Watcher
from gpulet.api import names
from gpulet.kube.client import Client, load_configuration
from gpulet.kube.errors import KubeError
from gpulet.kube.events import Events
from gpulet.metrics.node import NodeMetrics
from gpulet.nvidia.mps import MpsError
from gpulet.nvidia.simulated import SimulatedSource
from gpulet.nvidia.source import DeviceError, DeviceSource

log = logging.getLogger("gpulet.agent")

_FIELD_MANAGER = "gpulet-agent"
_TURN_POLL_S = 0.5
_NODES_CDI = Path("/etc/cdi")
_SWEEP_S = 60.0
Look = Callable[[], Awaitable[object]]
_PASSING = (KubeError, DeviceError, DeadlineError, MpsError, OSError)
"""What a later look may find mended."""


def main(config_path: Path) -> None:
    """Runs until SIGTERM. Ends with one line that names the remedy if it cannot begin."""
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        config, identity = load(config_path)
        self_test(config)
        shares = make_shares(config, identity)
    except (ConfigurationError, DeviceError, ValueError) as error:
        raise SystemExit(f"gpulet agent: {error}") from error
    asyncio.run(run(config, identity, shares))


def self_test(config: AgentConfig) -> None:
    """Every folder can be written to; raises ConfigurationError that names the field (failure case A18).

    A full disk is said and lived with: shares can still be undone, and nothing else frees it sooner.
    """
    for field, folder in {
        "kubeletDirectory": config.kubelet_directory / "plugins",
        "kubeletDirectory (plugins_registry)": config.kubelet_directory / "plugins_registry",
        "cdiDirectory": config.cdi_directory,
        "mpsDirectory": config.mps_directory,
        "stateDirectory": config.state_directory,
    }.items():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise ConfigurationError(f"{field}: {folder} cannot be written to ({error.strerror})") from error
            log.error("%s: %s is full; no share can be made until there is room", field, folder)
    if config.shared_memory_tmpfs:
        _test_mounting(config.mps_directory)


def _test_mounting(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder, prefix=".self-test") as name:
        try:
            tmpfs.mount(Path(name))
            tmpfs.unmount(Path(name))
        except OSError as error:
            raise ConfigurationError(
                f"sharedMemoryTmpfs: cannot mount a tmpfs below {folder} ({error.strerror}); run the agent privileged "
                "with Bidirectional mount propagation, or set it false"
            ) from error


def make_shares(config: AgentConfig, identity: Identity) -> Shares:
    """The node's shares; raises ValueError for an unknown product, DeviceError without a driver."""
    state, node = config.state_directory, identity.node_name
    source = _source(config, node)
    daemons = Daemons(
        config.mps_directory, source.name, mount_shm=config.shared_memory_tmpfs, proc=config.proc_directory
    )
    return Shares(
        node=node,
        source=source,
        daemons=daemons,
        state=state,
        cdi_folder=config.cdi_directory,
        idle_instance_s=config.idle_instance_seconds,
        adopt_instances=config.adopt_instances,
    )


def _source(config: AgentConfig, node: str) -> DeviceSource:
    if config.source == "nvml":
        # Only where it is used: it opens the driver's library.
        from gpulet.nvidia.driver_files import DriverFiles
        from gpulet.nvidia.nvml import NvmlSource

        return NvmlSource(
            mode_changes=config.mig_mode_changes,
            ignored_xids=config.ignored_xids,
            files=DriverFiles(config.toolkit, config.proc_directory, [config.cdi_directory, _NODES_CDI]),
        )
    gpus = [(g.product, g.mig, g.millicores) for g in config.gpus_of(node) for _ in range(g.count)]
    state = config.state_directory
    return SimulatedSource(node, gpus, state / "simulated.json", state / "faults.json", config.mig_mode_changes)


async def run(config: AgentConfig, identity: Identity, shares: Shares) -> None:
    """Serves the kubelet at once; slices and conditions are this agent's as soon as no other agent has them."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    async with Client(await load_configuration(), field_manager=_FIELD_MANAGER) as client:
        events = Events(client, identity.pod_uid, controller=f"{names.GROUP}/agent")
        coexistence = Coexistence(
            client,
            shares,
            events,
            mps=config.mps_directory,
            proc=config.proc_directory,
            tolerated=config.tolerated_owners,
            ask_s=config.owners_period_seconds,
        )
        publisher = Publisher(
            client,
            shares,
            open_to_all=config.open_to_all,
            taint_clear_s=config.taint_clear_seconds,
            owners_known=coexistence.known,
        )
        looks: dict[str, Look] = {
            "looking for other owners of the GPUs": coexistence.look,
            "telling of the GPUs' health": HealthEvents(client, shares, events).look,
            "looking for changes of the GPUs": publisher.look_for_changes,
        }
        metrics = NodeMetrics()
        watcher = Watcher(client, shares, metrics, proc=config.proc_directory, period_s=config.verify_period_seconds)

        def registered() -> None:
            config.ready_file.touch()
            publisher.wake()

        plugin = Plugin(
            client,
            shares,
            kubelet=config.kubelet_directory,
            pod_uid=identity.pod_uid,
            registered=registered,
            changed=watcher.wake,
            metrics=metrics,
            period_s=config.verify_period_seconds,
        )
        await plugin.start()
        served = await serve(metrics, shares, config.metrics_port)
        log.info("node %s: %d GPUs (%s)", shares.node, len(shares.source.gpus()), shares.source.name)
        duties = asyncio.create_task(_duties(config, shares, publisher, watcher, looks))
        ended = asyncio.create_task(stopped.wait())
        await asyncio.wait({duties, ended}, return_when=asyncio.FIRST_COMPLETED)
        await plugin.stop()
        if served is not None:
            await served.cleanup()
        if duties.done():
            # A bug ended it: the container's restart is the remedy.
            duties.result()
        duties.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await duties
        log.info("stopped; daemons and shares live on")


async def _duties(
    config: AgentConfig, shares: Shares, publisher: Publisher, watcher: Watcher, looks: Mapping[str, Look]
) -> None:
    """What one agent of the node does alone: two of different versions would rewrite each other's slices."""
    with (config.state_directory / "turn").open("a") as file:
        # The lock is another process's: there is nothing to await but time.
        while not _try_lock(file.fileno()):  # noqa: ASYNC110
            await asyncio.sleep(_TURN_POLL_S)
        log.info("publishing and watching from now on")
        async with asyncio.TaskGroup() as tasks:
            for duty in (publisher.informer.run, publisher.run, watcher.pods.run, watcher.run):
                tasks.create_task(duty())
            tasks.create_task(_look_regularly(config, shares, looks))


async def _look_regularly(config: AgentConfig, shares: Shares, looks: Mapping[str, Look]) -> None:
    said, swept_s = Said(log), -_SWEEP_S

    async def sweep() -> None:
        nonlocal swept_s
        if time.monotonic() - swept_s < _SWEEP_S:
            return
        removed = await asyncio.to_thread(shares.sweep, Deadline(_SWEEP_S))
        swept_s = time.monotonic()
        if removed:
            log.info("removed what belonged to no claim: %s", ", ".join(removed))

    while True:
        for what, look in {**looks, "sweeping the node": sweep}.items():
            # Each by itself: without the API server the node is swept all the same.
            try:
                await look()
            except _PASSING as error:
                said.trouble(what, error)
            else:
                said.well(what)
        await asyncio.sleep(config.verify_period_seconds)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
