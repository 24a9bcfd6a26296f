"""Looking for other owners of this node's GPUs, and remembering whom for all agents of the node.

Nothing of another owner is touched: its GPUs get a taint with the reason, an event is told, and new shares are refused.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gpulet.agent.foreign import HostDaemon, Owner, daemon_of, host_daemon_owner, node_owners, process_owner, served_by
from gpulet.agent.observe import environment_of, parent_of
from gpulet.agent.shares import Shares
from gpulet.kube.client import Client
from gpulet.kube.events import Events
from gpulet.kube.kinds import NODE, RESOURCE_SLICE
from gpulet.nvidia.mps import MpsError
from gpulet.nvidia.source import PhysicalGpu

log = logging.getLogger("gpulet.coexistence")


class Coexistence:
    """Looks each period; asks the API server from time to time."""

    def __init__(
        self,
        client: Client,
        shares: Shares,
        events: Events,
        *,
        mps: Path,
        proc: Path,
        tolerated: Iterable[str],
        ask_s: float,
    ) -> None:
        """``mps``: where our daemons' pipes are; ``tolerated``: reasons that an admin says to overlook; ``ask_s``:
        between two questions to the API server."""
        self._client = client
        self._shares = shares
        self._events = events
        self._mps = mps
        self._proc = proc
        self._tolerated = frozenset(tolerated)
        self._ask_s = ask_s
        self._node: dict[str, Any] = {}
        self._everywhere: list[Owner] = []
        self._asked_s: float | None = None
        self._seen: set[int] = set()
        self._owners: dict[str, Owner] | None = None
        self.known = asyncio.Event()

    async def look(self) -> bool:
        """Whether something changed; raises KubeError, DeviceError, OSError."""
        now_s = time.monotonic()
        if self._asked_s is None or now_s - self._asked_s >= self._ask_s:
            self._node = await self._client.get(NODE, self._shares.node)
            slices, _ = await self._client.list(RESOURCE_SLICE, fields=f"spec.nodeName={self._shares.node}")
            self._everywhere, self._asked_s = node_owners(self._node, slices), now_s
        if self._owners is None:
            await asyncio.to_thread(self._find)
        owners = await asyncio.to_thread(self._find)
        if owners == self._owners:
            return False
        await asyncio.to_thread(self._shares.withdrawn.write, owners)
        for uuid in (self._owners or {}).keys() - owners.keys():
            await self._tell("ForeignOwnerGone", f"GPU {uuid} is Gpulet's again", warning=False)
        for uuid, owner in owners.items():
            await self._tell(owner.reason, f"GPU {uuid} is withdrawn: {owner.message}", warning=True)
        self._owners = owners
        self.known.set()
        return True

    async def _tell(self, reason: str, message: str, *, warning: bool) -> None:
        log.log(logging.WARNING if warning else logging.INFO, "%s: %s", reason, message)
        await self._events.tell(self._node, reason=reason, message=message, warning=warning)

    def _find(self) -> dict[str, Owner]:
        gpus = [gpu for gpu in self._shares.source.gpus() if gpu.health != "lost"]
        daemons = host_daemons(self._proc, self._mps)
        held = {gpu.uuid: self._strangers(gpu) for gpu in gpus}
        now = {d.pid for d in daemons} | {pid for pids in held.values() for pid in pids}
        # Seen twice: a process that is just being started or ended is nobody's statement.
        stayed, self._seen = now & self._seen, now
        owners = {}
        for gpu in gpus:
            found = [*self._everywhere]
            found += [host_daemon_owner(d) for d in daemons if d.pid in stayed and self._serves(d, gpu)]
            if strangers := held[gpu.uuid] & stayed:
                found.append(process_owner(strangers))
            found = [owner for owner in found if owner.reason not in self._tolerated]
            if found:
                owners[gpu.uuid] = found[0]
        return owners

    def _serves(self, daemon: HostDaemon, gpu: PhysicalGpu) -> bool:
        instances = [i.uuid for i in self._shares.source.instances(gpu.uuid)]
        return served_by(daemon, gpu, instances, simulated=self._shares.source.name == "simulated")

    def _strangers(self, gpu: PhysicalGpu) -> set[int]:
        """PIDs that compute on the GPU past our daemons: those, their servers and their clients are ours."""
        daemons = self._shares.daemons
        ours = {process.pid for process in map(daemons.running, daemons.wanted()) if process is not None}
        found = {
            p.pid
            for p in self._shares.source.processes(gpu.uuid)
            if p.kind == "compute" and p.pid not in ours and parent_of(self._proc, p.pid) not in ours
        }
        for uuid in daemons.wanted() if found else ():
            # Where the driver cannot tell clients of MPS from others, the daemons can.
            with contextlib.suppress(MpsError):
                found -= daemons.control(uuid).clients().keys()
        return found


def host_daemons(proc: Path, ours: Path) -> list[HostDaemon]:
    """MPS control daemons that are running and not ours."""
    found = []
    for folder in proc.glob("[1-9]*"):
        try:
            arguments = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        environment = environment_of(proc, int(folder.name)) if "nvidia-cuda-mps" in "".join(arguments[:2]) else None
        daemon = None if environment is None else daemon_of(int(folder.name), arguments, environment, str(ours))
        if daemon is not None:
            found.append(daemon)
    return found
