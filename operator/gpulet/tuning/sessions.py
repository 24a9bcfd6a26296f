"""Measuring candidates: sessions with the servers of the job's share, over the tracker."""

import time
from typing import Any

from gpulet.api.workload import TRACKER_PORT, TuneSpec
from gpulet.tuning.environment import prepare

SESSION_S = 60
"""The server ends a candidate that takes longer."""
PATIENCE_S = 300
"""How long a candidate waits for a tracker and a free server: a pod of either may be on its way to another node."""
_LEAST_MS = 200
"""Of measurement a candidate: many periods of a 10 ms quota, so that throttling shows in the mean and not by chance."""


def patient_session(config: Any) -> Any:
    """Runs in the pool worker, which imports it by name. A lost tracker or server must not use up trials."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return config.connect_server()
        except Exception:  # TVM raises errors of many kinds while a tracker or a server restarts
            if time.monotonic() > deadline:
                raise
            time.sleep(2)


def runner_of(spec: TuneSpec) -> Any:
    """MetaSchedule's RPC runner with one worker: one candidate of this client is measured at a time."""
    from tvm.s_tir.meta_schedule.runner import EvaluatorConfig, RPCConfig, RPCRunner

    runner = RPCRunner(
        RPCConfig(
            tracker_host=spec.tracker_host,
            tracker_port=TRACKER_PORT,
            tracker_key=spec.tracker_key,
            session_timeout_sec=SESSION_S,
        ),
        EvaluatorConfig(number=1, repeat=1, min_repeat_ms=_LEAST_MS, enable_cpu_cache_flush=False),
        f_create_session=patient_session,
        max_workers=1,
        initializer=prepare,
    )
    # The server's limit does not help if its node is gone: no answer would ever come, and RPCRunner sets no limit.
    runner.pool._timeout = PATIENCE_S + 2 * SESSION_S
    return runner
