"""The pipeline engine: starts the workers, scores the snapshots they hand over, adds up results."""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict

import torch

from reproduce.engine.listen import run_workers
from reproduce.engine.process import WorkerSettings, work
from reproduce.engine.report import Done, Loss, Snapshot
from reproduce.engine.scoring import Scorer
from reproduce.escapes import check
from reproduce.job import Job, Memory, Observer, Outcome, evaluation_due
from reproduce.phases import phases
from reproduce.trace import common_start, texts


def run_pipeline(
    job: Job,
    workers: int,
    observer: Observer | None = None,
    threads: int = 1,
    max_send_delay: float = 0.0,
) -> Outcome:
    """Train `job` on `workers` processes of `threads` threads each.

    `max_send_delay` (seconds) makes messages late at random; the result does not depend on it.

    Raises:
        ValueError: a job that cannot run (see `check`), or more workers than stages.
        WorkerFailed: a worker died or raised; all are gone by then.
    """
    if job.method.lockfree:
        raise ValueError(f"method {job.method.name!r} is lock-free: run it with run_lockfree")
    if job.measure_discrepancy:
        raise ValueError(
            "measure_discrepancy: only the reference engine keeps the weights to compare; "
            "use run_reference"
        )
    if not 1 <= workers <= job.stages:
        raise ValueError(f"{workers} workers for {job.stages} stages: choose 1 to {job.stages}")
    started = time.monotonic()
    check(job)
    with tempfile.TemporaryDirectory() as folder:
        rendezvous = f"file://{folder}/rendezvous"
        settings = WorkerSettings(job, workers, rendezvous, threads, max_send_delay)
        outcome = _Launch(settings, observer or Observer()).run()
    outcome.wall_s = time.monotonic() - started
    return outcome


class _Launch:
    """One run, seen from the process that started it."""

    def __init__(self, settings: WorkerSettings, observer: Observer) -> None:
        self.settings, self.job, self.observer = settings, settings.job, observer
        self.outcome = Outcome()
        self._scorer = Scorer(self.job, self.outcome, observer)
        self._snapshots: dict[int, dict[int, Snapshot]] = defaultdict(dict)
        self._done: dict[int, Done] = {}

    def run(self) -> Outcome:
        settings = self.settings
        self._done = run_workers(self.job, settings.world, work, settings, self._hear)
        return self._finish()

    def _hear(self, message: Loss | Snapshot) -> None:
        match message:
            case Loss(step, value):
                self.outcome.losses.append(value)
                self.observer.on_loss(step, value)
            case Snapshot(steps, stage):
                stages = self._snapshots[steps]
                stages[stage] = message
                if len(stages) == self.job.stages and self._sound(steps):
                    self._scorer.evaluate(steps, self._snapshots.pop(steps))

    def _sound(self, steps: int) -> bool:
        """Whether the run had not diverged by the last of these updates."""
        return self.outcome.losses[steps - 1] <= self.job.divergence_loss

    def _finish(self) -> Outcome:
        outcome, job = self.outcome, self.job
        workers = self._done.values()
        final = {stage.stage: stage for done in workers for stage in done.stages}
        if not self._sound(outcome.steps):
            outcome.status = "diverged"
        elif evaluation_due(job, outcome.steps):
            self._scorer.finish(outcome.steps, final)
        ordered = [final[stage] for stage in sorted(final)]
        outcome.weights = [torch.from_numpy(w) for stage in ordered for w in stage.weights]
        delays = (delay for done in workers for delay in done.delays)
        outcome.delays = sorted(delays, key=lambda delay: delay.stage)
        outcome.memory = sum((done.memory for done in workers), start=Memory())
        outcome.utilization = sum(done.utilization for done in workers) / len(self._done)
        outcome.loop_s = max(done.loop_s for done in workers)
        if job.trace:
            outcome.trace = common_start(event for done in workers for event in done.trace)
            outcome.texts |= texts(outcome.trace)
        for phase in phases(job):
            outcome.drains += phase.flushes(outcome.steps)
        return outcome
