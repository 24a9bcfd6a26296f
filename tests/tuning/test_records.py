"""Progress is what lies on disk, also after a kill in the middle of a line."""

import json
from pathlib import Path

from gpulet.tuning.records import DONE, RECORDS, client_folder, client_progress, mend, resume


def record(seconds: float) -> str:
    return json.dumps([0, [["trace"], [seconds], {"kind": "llvm"}, []]])


def test_measured_and_failed_trials_are_counted(tmp_path: Path) -> None:
    folder = client_folder(tmp_path, 1)
    folder.mkdir(parents=True)
    (folder / RECORDS).write_text("\n".join([record(0.001), record(1e10), record(0.002)]) + "\n")
    progress = client_progress(tmp_path, 1)
    assert (progress.trials, progress.failed, progress.finished) == (3, 1, False)
    (folder / DONE).touch()
    assert client_progress(tmp_path, 1).finished


def test_a_client_that_has_not_begun_has_no_trials(tmp_path: Path) -> None:
    assert client_progress(tmp_path, 0).trials == 0


def test_half_a_line_is_dropped_and_whole_ones_stay(tmp_path: Path) -> None:
    path = tmp_path / RECORDS
    path.write_text(record(0.001) + "\n" + record(0.002)[:20])
    mend(tmp_path)
    assert path.read_text() == record(0.001) + "\n"
    path.write_text(record(0.001) + "\n" + record(0.002))
    mend(tmp_path)
    assert len(path.read_text().splitlines()) == 2


def test_a_record_that_is_being_written_is_not_counted_yet(tmp_path: Path) -> None:
    folder = client_folder(tmp_path, 0)
    folder.mkdir(parents=True)
    (folder / RECORDS).write_text(record(0.001) + "\n" + record(0.002)[:20])
    progress = client_progress(tmp_path, 0)
    assert (progress.trials, progress.failed) == (1, 0)


def test_a_reached_goal_stays_reached_and_a_larger_one_goes_on_from_the_records(tmp_path: Path) -> None:
    assert not resume(tmp_path, share="llvm.share50", goal="trials=12")
    (tmp_path / RECORDS).write_text(record(0.001) + "\n")
    (tmp_path / DONE).write_text("trials=12")
    assert resume(tmp_path, share="llvm.share50", goal="trials=12")
    assert not resume(tmp_path, share="llvm.share50", goal="trials=64")
    assert not (tmp_path / DONE).exists()
    assert (tmp_path / RECORDS).read_text() == record(0.001) + "\n"


def test_what_was_measured_in_another_share_is_dropped(tmp_path: Path) -> None:
    resume(tmp_path, share="llvm.share50", goal="trials=12")
    (tmp_path / RECORDS).write_text(record(0.001) + "\n")
    (tmp_path / DONE).write_text("trials=12")
    assert not resume(tmp_path, share="llvm.share30", goal="trials=12")
    assert not (tmp_path / RECORDS).exists()
