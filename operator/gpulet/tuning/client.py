"""`gpulet tune-client`: searches one shard of the model's operators and has the candidates measured in the share.

Every measured trial is in the client's own records at once: killed and started again, it goes on where it was.
"""

import logging
import os
import sys
import time
from functools import cached_property
from pathlib import Path
from typing import Any

from gpulet.api.workload import TRACKER_PORT, TuneSpec
from gpulet.tuning.builds import pool_builder
from gpulet.tuning.child import go_on_in_a_child
from gpulet.tuning.environment import digest_of, model_path, prepare, work_folder
from gpulet.tuning.records import DONE, client_folder, resume
from gpulet.tuning.sessions import runner_of
from gpulet.tuning.sharding import allot, in_order, shards

log = logging.getLogger("gpulet.tune-client")

_PER_ROUND = 4
"""Candidates a round: what a kill can lose."""
_WAIT_FOR_SERVERS_S = 600.0


def main(spec: str) -> None:
    """Entry point; exits 1 if the model cannot be tuned (merge will say why) or no server comes up."""
    logging.basicConfig(level="INFO", format="%(asctime)s %(name)s %(message)s")
    go_on_in_a_child()
    prepare()
    parsed = TuneSpec.model_validate_json(spec)
    ordinal = int(os.environ.get("JOB_COMPLETION_INDEX", parsed.ordinal))
    folder = client_folder(work_folder(), ordinal)
    goal = goal_of(parsed)
    if resume(folder, share=parsed.tracker_key, goal=goal):
        log.info("client %d: nothing is left to do", ordinal)
        return
    search(parsed, ordinal, folder)
    (folder / DONE).write_text(goal)


def goal_of(spec: TuneSpec) -> str:
    """What the records must be enough for: the model as it is now, its batch, the trials and how they are split."""
    path = model_path(spec.model)
    digest = digest_of(path) if path.is_file() else "missing"
    return f"{digest} batch={spec.model.batch} trials={spec.trials} clients={spec.clients}\n"


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
    bench = Bench(spec, folder)
    have = {w.name: count(bench.database, found[w.index]) for w in mine}
    left = [w for w in mine if have[w.name] < trials[w.name]]
    if left:
        wait_for_server(spec)
    for work in left:
        log.info("%s: %d of %d trials are measured", work.name, have[work.name], trials[work.name])
        tune_one(bench, found[work.index], have=have[work.name], wanted=trials[work.name])


class Bench:
    """What all operators of a client are tuned with; its worker processes start once, with the first candidate."""

    def __init__(self, spec: TuneSpec, folder: Path) -> None:
        from tvm.s_tir.meta_schedule.database import JSONDatabase

        self.spec, self.folder = spec, folder
        self.database = JSONDatabase(work_dir=str(folder))

    @cached_property
    def builder(self) -> Any:
        return pool_builder()

    @cached_property
    def runner(self) -> Any:
        return runner_of(self.spec)


def tune_one(bench: Bench, task: Any, *, have: int, wanted: int) -> None:
    """Measures what is missing of ``wanted`` trials of one operator."""
    from tvm.s_tir import meta_schedule as ms

    spec, folder = bench.spec, bench.folder
    contexts, weights = ms.relax_integration.extracted_tasks_to_tune_contexts(
        [task], str(folder), strategy=_strategy(spec.strategy), seed=spec.seed + 1 + have, num_threads=1
    )
    ms.tune_tasks(
        tasks=contexts,
        task_weights=weights,
        work_dir=str(folder),
        max_trials_global=wanted - have,
        num_trials_per_iter=min(_PER_ROUND, wanted - have),
        builder=bench.builder,
        runner=bench.runner,
        database=bench.database,
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
