"""The work folder of a job: what each client has measured so far. Plain files, readable without TVM."""

import json
from pathlib import Path

from gpulet.api.workload import ClientProgress

RECORDS = "database_tuning_record.json"
WORKLOADS = "database_workload.json"
DONE = "done"
SHARE = "share"
"""Holds the tracker key the records were measured under."""
ARTIFACT = "tuned.so"
SIDECAR = "tuned.json"
FAILED_SECONDS = 1e9
"""MetaSchedule records a failed candidate with a run time of 1e10 s."""


def client_folder(work: Path, ordinal: int) -> Path:
    return work / "clients" / str(ordinal)


def client_progress(work: Path, ordinal: int) -> ClientProgress:
    """Measured trials of one client, counted in its records file."""
    folder = client_folder(work, ordinal)
    trials = failed = 0
    records = folder / RECORDS
    if records.is_file():
        # What follows the last newline is a record that is being written.
        for line in records.read_text().split("\n")[:-1]:
            trials += 1
            failed += _failed(line)
    return ClientProgress(ordinal=ordinal, trials=trials, failed=failed, finished=(folder / DONE).exists())


def _failed(line: str) -> bool:
    """A record is [workload index, [trace, run seconds, target, arguments]]; an unreadable one counts as failed."""
    try:
        seconds = json.loads(line)[1][1]
    except (ValueError, LookupError, TypeError):
        return True
    return not seconds or min(float(s) for s in seconds) > FAILED_SECONDS


def resume(folder: Path, *, share: str, goal: str) -> bool:
    """Makes the folder fit to go on from; answers whether ``goal`` is reached already.

    The same output may serve one job after another: what was measured in another share says nothing here and is
    dropped; what an earlier goal left is a head start for a new one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    mark, done = folder / SHARE, folder / DONE
    if mark.is_file() and mark.read_text() != share:
        for name in (RECORDS, WORKLOADS, DONE):
            (folder / name).unlink(missing_ok=True)
    mark.write_text(share)
    if done.is_file() and done.read_text() == goal:
        return True
    done.unlink(missing_ok=True)
    mend(folder)
    return False


def mend(folder: Path) -> None:
    """Drops a half-written last line that a kill left behind: TVM would refuse the whole file for it."""
    for name in (RECORDS, WORKLOADS):
        path = folder / name
        if not path.is_file():
            continue
        text = path.read_text()
        whole = text[: text.rfind("\n") + 1]
        if text and not text.endswith("\n"):
            try:
                json.loads(text[len(whole) :])
                whole = text + "\n"
            except ValueError:
                pass
            path.write_text(whole)
