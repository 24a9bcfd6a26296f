"""What the tests on a real cluster need of the machine; without it they are skipped, each with the reason."""

import os
import shutil
import sys

import pytest

from e2e.cluster.paths import cache_root


def missing() -> str | None:
    """What the local cluster lacks on this machine; None: nothing."""
    if sys.platform != "linux":
        return "Linux (nodes are network namespaces)"
    if os.geteuid() != 0:
        return "root (nodes are network namespaces)"
    if shutil.which("go") is None and not (cache_root() / "bin").is_dir():
        return "Go 1.26 (Kubernetes is built once, from its modules)"
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skips all of e2e, or ends at once where GPULET_REQUIRE_E2E says that it has to run (as CI does)."""
    lacking = missing()
    if lacking is None:
        return
    if os.environ.get("GPULET_REQUIRE_E2E"):
        raise pytest.UsageError(f"the tests on a real cluster are required here, and need {lacking}")
    for item in items:
        item.add_marker(pytest.mark.skip(reason=f"needs {lacking}"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The last thing that is read."""
    if lacking := missing():
        terminalreporter.write_line(f"NOT RUN: every test on a real cluster; this machine lacks {lacking}", red=True)
