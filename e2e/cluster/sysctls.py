"""Machine-wide sysctls that clusters change: saved before the first cluster, put back after the last."""

import json
from pathlib import Path

from e2e.cluster.layout import all_clusters
from e2e.cluster.paths import locked, state_root, write_atomically

CHANGED_BY_KUBELET = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
# A cluster takes about 30 inotify instances; with the usual 128 the fourth one fails with "too many open files".
RAISED = {"fs/inotify/max_user_instances": 1024}


def save_and_raise() -> None:
    """Record the values of now, unless a cluster that runs has recorded them already, and raise what is too low."""
    with locked(state_root() / "locks/sysctls"):
        names = [name for name in (*CHANGED_BY_KUBELET, *RAISED) if _file(name).exists()]
        recorded = json.loads(_record().read_text()) if _record().exists() else {}
        now = {name: _file(name).read_text().strip() for name in names if name not in recorded}
        if now:
            write_atomically(_record(), json.dumps(recorded | now))
        for name, least in RAISED.items():
            if name in names and int(_file(name).read_text()) < least:
                _file(name).write_text(str(least))


def restore_after_the_last() -> None:
    """Put the recorded values back if no cluster is left."""
    with locked(state_root() / "locks/sysctls"):
        if _record().exists() and not all_clusters():
            for name, value in json.loads(_record().read_text()).items():
                if _file(name).read_text().strip() != value:
                    _file(name).write_text(value)
            _record().unlink()


def _record() -> Path:
    return state_root() / "sysctls.json"


def _file(name: str) -> Path:
    return Path("/proc/sys") / name
