"""`gpulet tune-client`: searches one shard of the model's operators and has the candidates measured in the share.

Every measured trial is in the client's own records at once: killed and started again, it goes on where it was.
"""

import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

from gpulet.api.workload import TRACKER_PORT, TuneSpec
from gpulet.tuning.environment import model_path, prepare, work_folder
from gpulet.tuning.records import DONE, client_folder, mend
from gpulet.tuning.sharding import Work, allot, in_order, shards

log = logging.getLogger("gpulet.tune-client")

_PER_ROUND = 4
"""Candidates a round: what a kill can lose."""
_WAIT_FOR_SERVERS_S = 600.0


def main(spec: str) -> None:
    """Entry point; exits 1 if the model cannot be tuned (merge will say why) or no server comes up."""
    logging.basicConfig(level="INFO", format="%(asctime)s %(name)s %(message)s")
    prepare()
    parsed = TuneSpec.model_validate_json(spec)
    ordinal = int(os.environ.get("JOB_COMPLETION_INDEX", parsed.ordinal))
    folder = client_folder(work_folder(), ordinal)
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / DONE).exists():
        return
    mend(folder)
    search(parsed, ordinal, folder)
    (folder / DONE).touch()


def search(spec: TuneSpec, ordinal: int, folder: Path) -> None:
    """Tunes the shard's operators one after the other, each up to its allotment of trials."""
    from gpulet.tuning.model import ModelError, load, target, tasks

    try:
        loaded = load(model_path(spec.model), format_=spec.model.format, batch=spec.model.batch)
    except ModelError as error:
        # The merge step reads the same file and reports it on the TuningJob; a retry here would change nothing.
        log.error("%s: %s", error.reason, error)
        return
    cpu = target()
    found, works = tasks(loaded.module, cpu)
    ordered = in_order(works)
    trials = allot(ordered, spec.trials)
    mine = shards(ordered, trials, spec.clients)[ordinal]
    log.info("client %d of %d: %s", ordinal, spec.clients, {w.name: trials[w.name] for w in mine})
    wait_for_server(spec)
    for work in mine:
        tune_one(spec, found[work.index], work, trials[work.name], folder)


def tune_one(spec: TuneSpec, task: Any, work: Work, wanted: int, folder: Path) -> None:
    """Measures what is missing of ``wanted`` trials of one operator."""
    from tvm.s_tir import meta_schedule as ms

    from gpulet.tuning.builds import pool_builder

    database = ms.database.JSONDatabase(work_dir=str(folder))
    have = count(database, task)
    if have >= wanted:
        return
    contexts, weights = ms.relax_integration.extracted_tasks_to_tune_contexts(
        [task], str(folder), strategy=_strategy(spec.strategy), seed=spec.seed + 1 + have, num_threads=1
    )
    log.info("%s: %d of %d trials are measured", work.name, have, wanted)
    ms.tune_tasks(
        tasks=contexts,
        task_weights=weights,
        work_dir=str(folder),
        max_trials_global=wanted - have,
        num_trials_per_iter=min(_PER_ROUND, wanted - have),
        builder=pool_builder(),
        runner=_runner(spec),
        database=database,
        cost_model="xgb" if spec.strategy == "evolutionary" else "random",
        task_scheduler="round-robin",
    )


def count(database: Any, task: Any) -> int:
    """Trials of one operator in the records, failed ones included: they were measured too."""
    from tvm_ffi import structural_equal

    module = task.dispatched[0]
    return sum(structural_equal(r.workload.mod, module) for r in database.get_all_tuning_records())


def wait_for_server(spec: TuneSpec, *, patience_s: float = _WAIT_FOR_SERVERS_S) -> None:
    """Returns when the tracker lists a server of our key; exits 1 after ``patience_s``."""
    from tvm import rpc

    deadline, said = time.monotonic() + patience_s, 0.0
    while time.monotonic() < deadline:
        try:
            summary = rpc.connect_tracker(spec.tracker_host, TRACKER_PORT).summary()
            if any(s["key"] == f"server:{spec.tracker_key}" for s in summary["server_info"]):
                return
        except Exception as error:  # TVM raises bare errors of many kinds while the tracker starts
            log.debug("tracker: %s", error)
        if time.monotonic() - said > 15:
            said = time.monotonic()
            log.info("waiting for a server of %s at %s", spec.tracker_key, spec.tracker_host)
        time.sleep(1)
    log.error("no server of %s within %.0f s", spec.tracker_key, patience_s)
    sys.exit(1)


def _strategy(name: str) -> Any:
    """The default population of 512 costs 22 s of CPU a round and operator; a small one serves small budgets."""
    from tvm.s_tir import meta_schedule as ms

    if name == "replay-trace":
        return "replay-trace"
    return ms.search_strategy.EvolutionarySearch(
        population_size=64, init_min_unmeasured=16, genetic_num_iters=2, max_fail_count=5
    )


def _runner(spec: TuneSpec) -> Any:
    """Measures on any free server of the job's key. At least 200 ms a candidate: a quota's period must not show."""
    from tvm.s_tir.meta_schedule.runner import EvaluatorConfig, RPCConfig, RPCRunner

    return RPCRunner(
        RPCConfig(
            tracker_host=spec.tracker_host,
            tracker_port=TRACKER_PORT,
            tracker_key=spec.tracker_key,
            session_timeout_sec=60,
        ),
        EvaluatorConfig(number=1, repeat=1, min_repeat_ms=200, enable_cpu_cache_flush=False),
        max_workers=1,
    )
