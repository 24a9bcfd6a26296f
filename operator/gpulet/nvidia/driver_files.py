"""What a container needs to use a GPU or a MIG instance: CDI edits of our own.

Libraries, control devices and hooks are the same for every container: NVIDIA's toolkit is asked for them once for each
version of the driver. Which GPU or instance it is, is ours to say: an instance that was made a moment ago is in no
file that somebody generated before (failure case C18). Its two capability devices come from the access files that the
driver shows below ``/proc/driver/nvidia/capabilities`` (MIG user guide, "Device nodes and capabilities"), or, where a
container runtime hides those, from the driver's list of all that there can be, ``/proc/driver/nvidia-caps/mig-minors``.
"""

import json
import re
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from gpulet.nvidia.source import DeviceError

_TIMEOUT_S = 20
_KIND = "nvidia.com/gpu"
_OTHERS_DEVICE = re.compile(r"/dev/(nvidia\d+|nvidia-caps/.*|dri/.*)$")
_OTHERS_PIPE = re.compile(r"(/tmp|/run)/nvidia-mps(/.*)?$")
"""A daemon that is not ours: in a container it would win over a share of ours that lost its environment."""
_MINOR = re.compile(r"^DeviceFileMinor:\s*(\d+)$", re.MULTILINE)
_MODE = re.compile(r"^DeviceFileMode:\s*(\d+)$", re.MULTILINE)
_READABLE = 0o444
_FRONTENDS = ("nvidia-frontend", "nvidia")
_CAPABILITIES = ("nvidia-caps",)


class DriverFiles:
    """May be called from several threads."""

    def __init__(
        self,
        toolkit: Sequence[str] = ("nvidia-ctk",),
        proc: Path = Path("/proc"),
        specs: Sequence[Path] = (Path("/var/run/cdi"), Path("/etc/cdi")),
    ) -> None:
        """``toolkit``: the argv of nvidia-ctk. ``specs``: where a specification that the node's own toolkit keeps may
        lie, for when it cannot be run."""
        self._toolkit = list(toolkit)
        self._proc = proc
        self._specs = specs
        self._common: dict[str, dict[str, list[Any]]] = {}
        self._lock = threading.Lock()

    def edits(self, driver: str, minor: int, instance: tuple[int, int] | None) -> dict[str, list[Any]]:
        """CDI containerEdits for a GPU by its minor number, or for an instance by (GPU instance, compute instance).

        Raises DeviceError that names the file or command and what to do.
        """
        with self._lock:
            if driver not in self._common:
                self._common = {driver: shared_edits(self._ask())}
            common = self._common[driver]
        nodes = [_node(f"/dev/nvidia{minor}", self._major(_FRONTENDS), minor)]
        if instance is not None:
            gpu_instance = f"gi{instance[0]}"
            for of in (gpu_instance, f"{gpu_instance}/ci{instance[1]}"):
                nodes.append(self._capability(f"gpu{minor}", f"{of}/access"))
        # NVIDIA's older hook would add devices by this variable; it also says no to what an image asks for.
        env = [e for e in common.get("env", []) if not e.startswith("NVIDIA_VISIBLE_DEVICES=")]
        return {
            **common,
            "env": ["NVIDIA_VISIBLE_DEVICES=void", *env],
            "deviceNodes": [*common.get("deviceNodes", []), *nodes],
        }

    def _capability(self, gpu: str, access: str) -> dict[str, Any]:
        path = self._proc / "driver/nvidia/capabilities" / gpu / "mig" / access
        try:
            text = path.read_text()
        except OSError as error:
            listed = self._listed(f"{gpu}/{access}")
            if listed is None:
                raise DeviceError(
                    f"{path}: {error.strerror}; the driver shows no such MIG instance: is the agent's proc the host's"
                ) from error
            text = f"DeviceFileMinor: {listed}"
        minor, mode = _MINOR.search(text), _MODE.search(text)
        if minor is None:
            raise DeviceError(f"{path}: no line DeviceFileMinor; this version of the driver is not known")
        node = _node(f"/dev/nvidia-caps/nvidia-cap{minor[1]}", self._major(_CAPABILITIES), int(minor[1]))
        return node | {"permissions": "r", "fileMode": int(mode[1]) if mode else _READABLE}

    def _listed(self, capability: str) -> int | None:
        """A capability's minor number, in a file with lines such as ``gpu0/gi1/ci0/access 14``."""
        try:
            lines = (self._proc / "driver/nvidia-caps/mig-minors").read_text().splitlines()
        except OSError:
            return None
        return next(
            (int(number) for name, _, number in (line.partition(" ") for line in lines) if name == capability), None
        )

    def _major(self, names: Sequence[str]) -> int:
        majors = {}
        for line in (self._proc / "devices").read_text().splitlines():
            number, _, name = line.strip().partition(" ")
            majors[name] = number
        found = next((majors[name] for name in names if name in majors), None)
        if found is None:
            raise DeviceError(f"{self._proc}/devices lists no {names[0]}: is the NVIDIA driver loaded")
        return int(found)

    def _ask(self) -> dict[str, Any]:
        """The toolkit's specification: made now, or the one that the node keeps."""
        command = [*self._toolkit, "cdi", "generate", "--format=json", "--feature-flag=disable-ipc-discoverer"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
            said = done.stderr.strip()[-500:]
            if not done.returncode:
                return _document(done.stdout, " ".join(command))
        except (OSError, subprocess.TimeoutExpired) as error:
            said = str(error)
        kept = self._kept()
        if kept is None:
            raise DeviceError(f"{' '.join(command)}: {said}; install the NVIDIA Container Toolkit on the node")
        return kept

    def _kept(self) -> dict[str, Any] | None:
        paths = (path for folder in self._specs for end in ("yaml", "json") for path in sorted(folder.glob(f"*.{end}")))
        for path in paths:
            text = path.read_text()
            # Ours lie there too, one for each claim: not worth parsing.
            if _KIND in text and (document := _document(text, str(path))).get("kind") == _KIND:
                return document
        return None


def shared_edits(document: dict[str, Any]) -> dict[str, list[Any]]:
    """What every container gets of a specification of NVIDIA's toolkit: no GPU's own device, no other MPS daemon."""
    common = dict(document.get("containerEdits") or {})
    for key, where, others in (
        ("deviceNodes", "path", _OTHERS_DEVICE),
        ("mounts", "containerPath", _OTHERS_PIPE),
    ):
        if key in common:
            common[key] = [entry for entry in common[key] if not others.match(entry[where])]
    return common


def _document(text: str, origin: str) -> dict[str, Any]:
    try:
        # JSON is YAML, but read as such it is ten times slower.
        document = json.loads(text) if text.lstrip().startswith("{") else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError) as error:
        raise DeviceError(f"{origin}: not a CDI specification ({error})") from error
    if not isinstance(document, dict) or not document.get("containerEdits"):
        raise DeviceError(f"{origin}: a CDI specification without containerEdits has no driver files")
    return document


def _node(path: str, major: int, minor: int) -> dict[str, Any]:
    """With its numbers: the node need not exist on the host yet."""
    return {"path": path, "type": "c", "major": major, "minor": minor, "permissions": "rw"}
