"""`gpulet tune-merge`: one database of all clients, one artifact, checked and measured in its own share."""

import json
import logging
import math
import os
import sys
from pathlib import Path
from typing import Any

from gpulet.api.workload import TuneReport, TuneSpec
from gpulet.nvidia.simulated_client import connect_if_simulated
from gpulet.tuning.child import go_on_in_a_child
from gpulet.tuning.environment import digest_of, model_path, prepare, work_folder
from gpulet.tuning.records import ARTIFACT, FAILED_SECONDS, SIDECAR, client_folder
from gpulet.tuning.verdict import Timing, absolute_difference, adopted, relative_difference

log = logging.getLogger("gpulet.tune-merge")

TOLERANCE = 1e-3
"""Largest difference of an output relative to its largest value: the same sums in another order differ by far less."""


def main(spec: str) -> None:
    """Entry point: writes a TuneReport as the container's termination message; exits 1 if it holds an error."""
    logging.basicConfig(level="INFO", format="%(asctime)s %(name)s %(message)s")
    go_on_in_a_child()
    prepare()
    connect_if_simulated()
    from gpulet.tuning.model import ModelError

    try:
        report = merge(TuneSpec.model_validate_json(spec), work_folder())
    except ModelError as error:
        report = TuneReport(error=str(error)[:1000], reason=error.reason)
    except Exception as error:  # the TuningJob must say what went wrong, not only that something did
        log.exception("merge failed")
        message = f"{type(error).__name__}: {error}"[:900]
        report = TuneReport(error=f"{message}; see the log of the merge pod", reason="MergeFailed")
    path = Path(os.environ.get("GPULET_TERMINATION_LOG", "/dev/termination-log"))
    path.write_text(report.model_dump_json(by_alias=True, exclude_none=True))
    log.info("%s", report)
    sys.exit(1 if report.error else 0)


def merge(spec: TuneSpec, work: Path) -> TuneReport:
    """Builds, checks, measures, stores; raises ModelError."""
    import tvm
    from tvm.s_tir import meta_schedule as ms

    from gpulet.tuning.linking import export
    from gpulet.tuning.measure import runners_of, timings
    from gpulet.tuning.model import load, target

    path = model_path(spec.model)
    loaded = load(path, format_=spec.model.format, batch=spec.model.batch)
    model_digest = digest_of(path)
    cpu = target()
    database, records = merged_database(work, spec.clients)
    log.info("building with %d records", records)
    executable = ms.relax_integration.compile_relax(database, loaded.module, cpu, None)
    library = work / f".{ARTIFACT}.new.so"
    export(executable, library)
    runners = runners_of(spec, loaded, cpu, library)
    outputs = {name: runner() for name, runner in runners.items() if name != "before"}
    difference = absolute_difference(outputs["tuned"], outputs["untuned"])
    for name in ("untuned", "onnx"):
        relative = relative_difference(outputs["tuned"], outputs[name])
        if relative > TOLERANCE:
            library.unlink()
            return _differs(name, relative, records=records, difference=difference)
    measured = timings(runners)
    store(work, library, loaded, outputs["tuned"], batch=spec.model.batch)
    report = _report(measured, work, records=records, difference=difference, version=str(tvm.__version__))
    return report.model_copy(update={"model_digest": model_digest})


def _differs(name: str, relative: float, *, records: int, difference: float) -> TuneReport:
    other = {"untuned": "the untuned build's", "onnx": "ONNX Runtime's"}[name]
    error = (
        f"the tuned output differs from {other} by {relative:.2g} of its largest value (allowed {TOLERANCE:g}), so "
        "nothing was stored: the model goes on as it is; tune again in an empty output folder, or report the model"
    )
    finite = difference if math.isfinite(difference) else None
    return TuneReport(error=error, reason="OutputDiffers", records=records, max_difference=finite)


def merged_database(work: Path, clients: int) -> tuple[Any, int]:
    """One in-memory database of all clients' successful trials, and their number."""
    from tvm.s_tir.meta_schedule.database import JSONDatabase, MemoryDatabase, TuningRecord

    into, records = MemoryDatabase(), 0
    for ordinal in range(clients):
        folder = client_folder(work, ordinal)
        if not folder.is_dir():
            continue
        for record in JSONDatabase(work_dir=str(folder)).get_all_tuning_records():
            seconds = [float(s) for s in record.run_secs or ()]
            if not seconds or min(seconds) > FAILED_SECONDS:
                continue
            workload = into.commit_workload(record.workload.mod)
            into.commit_tuning_record(TuningRecord(record.trace, workload, seconds, record.target, record.args_info))
            records += 1
    return into, records


def store(work: Path, library: Path, loaded: Any, outputs: list[Any], *, batch: int) -> None:
    """The artifact and, before it, what a server must know of it: whoever finds the one finds the other."""
    import tvm

    described = zip(loaded.outputs, outputs, strict=True)
    sidecar = {
        "batch": batch,
        "tvm_version": str(tvm.__version__),
        "inputs": [{"name": t.name, "shape": list(t.shape), "dtype": t.dtype} for t in loaded.inputs],
        "outputs": [{"name": name, "shape": list(a.shape), "dtype": a.dtype.name} for name, a in described],
    }
    fresh = work / f".{SIDECAR}.new"
    fresh.write_text(json.dumps(sidecar))
    fresh.rename(work / SIDECAR)
    library.rename(work / ARTIFACT)


def _report(measured: dict[str, Timing], work: Path, *, records: int, difference: float, version: str) -> TuneReport:
    before = measured.get("before", measured["onnx"])
    return TuneReport(
        digest=digest_of(work / ARTIFACT),
        path=ARTIFACT,
        tvm_version=version,
        records=records,
        max_difference=difference,
        before_milliseconds=before.median_ms,
        untuned_milliseconds=measured["untuned"].median_ms,
        after_milliseconds=measured["tuned"].median_ms,
        onnx_runtime_milliseconds=measured["onnx"].median_ms,
        adopted=adopted(before, measured["tuned"]),
    )
