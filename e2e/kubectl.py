"""kubectl against one kubeconfig, for scripts and tests."""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.cluster.commands import kubectl as find_kubectl


class KubectlError(RuntimeError):
    """kubectl failed; the message holds the command and what it said."""


@dataclass(frozen=True)
class Kubectl:
    kubeconfig: Path

    def run(self, *arguments: str, stdin: str | None = None, timeout_s: float = 120.0) -> str:
        """Its stdout; raises KubectlError."""
        environment = os.environ | {"KUBECONFIG": str(self.kubeconfig)}
        command = [str(find_kubectl()), *arguments]
        done = subprocess.run(
            command, input=stdin, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        if done.returncode:
            raise KubectlError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()[-2000:]}")
        return done.stdout

    def get(self, kind: str, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        """One object, or None if it does not exist."""
        scope = ["-n", namespace] if namespace else []
        text = self.run(*scope, "get", kind, name, "--ignore-not-found", "-o", "json")
        found: dict[str, Any] | None = json.loads(text) if text.strip() else None
        return found

    def list(self, kind: str, *arguments: str) -> list[dict[str, Any]]:
        """All objects of a kind that match."""
        items: list[dict[str, Any]] = json.loads(self.run("get", kind, *arguments, "-o", "json"))["items"]
        return items

    def apply(self, *objects: dict[str, Any]) -> None:
        items = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.run("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(items))
