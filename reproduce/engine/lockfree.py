"""The lock-free engine: Hogwild! as it was meant, by processes that share the weights.

K workers share the parameters, buffers and optimizer state of one network in shared memory. Worker
r takes mini-batches t = r, r + K, r + 2K, ...:

    copy the shared weights                   (others write meanwhile: a torn read)
    forward and backward of N micro-batches   (all on that copy)
    optimizer update in place                 (others write meanwhile: an update may be lost)

No lock and no barrier from the first mini-batch to the last. The delay of an update is measured:
how many updates others completed between the start of its read and the end of its write. In steady
state every other worker writes once meanwhile, so its mean is K - 1: tau of T1, for every stage.
The first K updates come before it: they are counted, and left out of the mean.
Nothing of this is deterministic, except for K = 1, which is plain training.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction

from torch import multiprocessing as mp

from reproduce.engine.listen import START_METHOD, run_workers
from reproduce.engine.lockfree_worker import LockFreeSettings, work
from reproduce.engine.report import Done, Loss, Snapshot
from reproduce.engine.scoring import Scorer
from reproduce.engine.shared import Shared
from reproduce.escapes import check
from reproduce.job import Job, Observer, Outcome, StageDelay, evaluation_due


def run_lockfree(
    job: Job, workers: int, observer: Observer | None = None, threads: int = 1
) -> Outcome:
    """Train `job` on `workers` processes of `threads` threads each, which share the weights.

    `workers` takes the place of `job.lockfree_workers`. After mini-batch t, where an evaluation is
    due, the weights are scored as they stand then, after about t + 1 updates. `Outcome.losses`
    are in the order of t; a run that diverged lists the mini-batches up to the one that did, less
    those that no worker had come to. Memory: weights and optimizer state once, gradients,
    activations and a private copy of the weights (counted as `stash`) of every worker.

    Raises:
        ValueError: a job that cannot run (see `check`), that is not on the CPU, whose method is not
            lock-free, that wants what this engine has not, or whose optimizer's state cannot be
            shared.
        WorkerFailed: a worker died or raised; all are gone by then.
    """
    if not job.method.lockfree:
        raise ValueError(f"method {job.method.name!r} is not lock-free; use another engine")
    if job.trace or job.segment:
        raise ValueError("lock-free workers keep no timeline and recompute nothing: unset both")
    if workers < 1:
        raise ValueError(f"{workers} lock-free workers: choose at least 1")
    if job.device != "cpu":
        raise ValueError(f"device {job.device!r}: lock-free workers share memory of the CPU only")
    started = time.monotonic()
    job = replace(job, lockfree_workers=workers)
    check(job)
    outcome = _Launch(job, observer or Observer(), threads).run()
    outcome.wall_s = time.monotonic() - started
    return outcome


class _Launch:
    """One run, seen from the process that started it."""

    def __init__(self, job: Job, observer: Observer, threads: int) -> None:
        self.job, self.observer, self.threads = job, observer, threads
        self.outcome = Outcome()
        self.shared = Shared(job)
        self._scorer = Scorer(job, self.outcome, observer)
        self._losses: dict[int, float] = {}
        """Mini-batch -> its loss, as they came"""
        self._snapshots: dict[int, dict[int, Snapshot]] = defaultdict(dict)

    def run(self) -> Outcome:
        world = self.job.lockfree_workers
        start = mp.get_context(START_METHOD).Barrier(world)
        settings = LockFreeSettings(self.job, self.threads, self.shared.memory, start)
        done = run_workers(self.job, world, work, settings, self._hear)
        return self._finish(list(done.values()))

    def _hear(self, message: Loss | Snapshot) -> None:
        match message:
            case Loss(step, value):
                self._losses[step] = value
                while self.outcome.steps in self._losses and self._sound(self.outcome.losses[-1:]):
                    self._tell(self._losses[self.outcome.steps])
            case Snapshot(steps, stage):
                stages = self._snapshots[steps]
                stages[stage] = message
                if len(stages) == self.job.stages and self._sound(self._losses.values()):
                    self._scorer.evaluate(steps, self._snapshots.pop(steps))

    def _tell(self, loss: float) -> None:
        """The losses reach the observer in the order of t."""
        self.outcome.losses.append(loss)
        self.observer.on_loss(self.outcome.steps - 1, loss)

    def _sound(self, losses: Iterable[float]) -> bool:
        return all(loss <= self.job.divergence_loss for loss in losses)

    def _finish(self, done: list[Done]) -> Outcome:
        outcome, shared = self.outcome, self.shared
        if not self._sound(self._losses.values()):
            outcome.status = "diverged"
            first = min(t for t, loss in self._losses.items() if not self._sound([loss]))
            rest = (t for t in sorted(self._losses) if outcome.steps <= t <= first)
            for t in list(rest):
                self._tell(self._losses[t])
        elif evaluation_due(self.job, outcome.steps):
            final = {stage.stage: stage.snapshot(outcome.steps) for stage in shared.stages}
            self._scorer.finish(outcome.steps, final)
        outcome.metrics.sort()
        outcome.weights = [w.detach().clone() for stage in shared.stages for w in stage.weights]
        outcome.memory = sum((each.memory for each in done), start=shared.bytes())
        outcome.loop_s = max(each.loop_s for each in done)
        outcome.utilization = utilization(done)
        drawn = sum((Counter(each.drawn_delays) for each in done), start=Counter())
        outcome.drawn_delays = dict(sorted(drawn.items()))
        tau = mean_delay(done)
        outcome.delays = [StageDelay(stage.stage, tau, tau) for stage in shared.stages]
        return outcome


def utilization(done: Sequence[Done]) -> float:
    """Busy time of all workers over K times the time from their common start to the last one's
    end."""
    loop_s = max(each.loop_s for each in done)
    busy_s = sum(each.utilization * each.loop_s for each in done)
    return busy_s / (len(done) * loop_s) if loop_s else 1.0


def mean_delay(done: Sequence[Done]) -> Fraction | None:
    """Of the updates in steady state; None where there were none."""
    steady: Counter[int] = Counter()
    for each in done:
        steady.update(each.drawn_delays)
        steady.subtract(each.filling_delays)
    total = steady.total()
    return Fraction(sum(d * count for d, count in steady.items()), total) if total else None
