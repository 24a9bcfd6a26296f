"""Status of a TuningJob. Pure."""

from datetime import datetime, timedelta

from gpulet.api.tuningjob import Artifact, TrialFigures, TuningJob, TuningJobStatus, TuningLatency, WorkerFigures
from gpulet.api.workload import TuneProgress
from gpulet.controller.actions import Action, WriteStatus
from gpulet.controller.tuning_start import Start
from gpulet.status.conditions import Fact, conditions, kstatus

# The job holds nothing and waits for somebody: its deadline counts anew from when it goes on, as a Job's does.
_CLOCK_STOPS = ("Suspended", "ModelNotFound")


def past_deadline(job: TuningJob, now: datetime) -> bool:
    """Whether the search has gone on for longer than it may."""
    if job.status.start_time is None:
        return False
    started = datetime.fromisoformat(job.status.start_time)
    return now > started + timedelta(seconds=job.spec.deadline_seconds)


def status_of(
    job: TuningJob,
    fact: Fact,
    *,
    now: datetime,
    phase: str,
    start: Start | None = None,
    workers: WorkerFigures | None = None,
    progress: TuneProgress | None = None,
    latency: TuningLatency | None = None,
    artifact: Artifact | None = None,
    adopted: bool | None = None,
) -> list[Action]:
    """The whole status of a job; figures that are not given stay as they were."""
    old, generation = job.status, job.metadata.generation
    ended = fact.status != "Unknown"
    ready = Fact("Ready", fact.status, fact.reason, fact.message)
    stalled = fact if fact.status == "False" else None
    stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    started = old.start_time or (stamp if phase in ("Searching", "Merging") else None)
    if fact.reason in _CLOCK_STOPS:
        started = None
    status = TuningJobStatus(
        observed_generation=generation,
        conditions=conditions(old.conditions, [fact, *kstatus(ready, stalled=stalled)], generation=generation, now=now),
        phase=phase,  # type: ignore[arg-type]  # one of the literals
        trials=_trials(job, progress),
        workers=workers or (WorkerFigures() if old.workers is not None else None),
        compute_percent=start.compute_percent if start else old.compute_percent,
        batch=start.batch if start else old.batch,
        latency=latency or old.latency,
        artifact=artifact or old.artifact,
        adopted=adopted if adopted is not None else old.adopted,
        start_time=started.replace("+00:00", "Z") if started else None,
        completion_time=old.completion_time or (stamp if ended else None),
    )
    return [WriteStatus("TuningJob", job.key, status.to_dict())]


def _trials(job: TuningJob, progress: TuneProgress | None) -> TrialFigures:
    """Measured trials; the last known number while the tracker cannot be asked."""
    known = job.status.trials.done if job.status.trials else 0
    done = sum(c.trials for c in progress.clients) if progress is not None else known
    return TrialFigures(done=max(done, known), total=job.spec.trials)
