"""Machine-wide sysctls that kubelets change: saved before the first cluster, put back after the last."""

import json
from pathlib import Path

from e2e.cluster.layout import all_clusters
from e2e.cluster.paths import cache_root, locked, state_root, write_atomically

CHANGED_BY_KUBELET = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)


def save() -> None:
    """Record the values of now, unless a cluster that runs has recorded them already."""
    with locked(cache_root() / "locks/sysctls"):
        if not _record().exists():
            values = {name: _file(name).read_text().strip() for name in CHANGED_BY_KUBELET if _file(name).exists()}
            write_atomically(_record(), json.dumps(values))


def restore_after_the_last() -> None:
    """Put the recorded values back if no cluster is left."""
    with locked(cache_root() / "locks/sysctls"):
        if _record().exists() and not all_clusters():
            for name, value in json.loads(_record().read_text()).items():
                if _file(name).read_text().strip() != value:
                    _file(name).write_text(value)
            _record().unlink()


def _record() -> Path:
    return state_root() / "sysctls.json"


def _file(name: str) -> Path:
    return Path("/proc/sys") / name
