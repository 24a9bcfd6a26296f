"""What one agent of a node found of other owners, for the other that serves the kubelet beside it, and for people."""

import json
from pathlib import Path

from gpulet.agent.files import write_atomically
from gpulet.agent.foreign import Owner


class Withdrawn:
    """Which GPUs are other owners', in one file: the agent that looks tells the one that only serves the kubelet."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> dict[str, Owner]:
        """The first owner of each GPU that has one, by UUID."""
        try:
            return {uuid: Owner(*owner) for uuid, owner in json.loads(self._path.read_text()).items()}
        except (FileNotFoundError, ValueError, TypeError):
            return {}

    def write(self, owners: dict[str, Owner]) -> None:
        """Raises OSError."""
        write_atomically(self._path, json.dumps({u: (o.reason, o.message) for u, o in owners.items()}))
