"""The pipeline engine: starts the workers, listens to them, scores snapshots, ends them all.

Workers are processes of torch's own launcher, which sees the first that fails and ends the rest.
"""

from __future__ import annotations

import signal
import tempfile
import time
from collections import defaultdict
from functools import cached_property
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
from torch import multiprocessing as mp
from torch.multiprocessing.spawn import ProcessContext, ProcessException, start_processes

from data.task import Task
from models.partition import partition
from models.unit import Block
from reproduce.engine.process import WorkerSettings, worker_main
from reproduce.engine.report import SLOTS, Done, Failed, Loss, Message, Snapshot, last_seen
from reproduce.escapes import check
from reproduce.evaluation import evaluating
from reproduce.job import Job, Memory, Observer, Outcome, WorkerFailed, evaluation_due
from reproduce.phases import phases

_START_METHOD = "forkserver"
"""Imports torch once for all the runs of a grid, and forks before any thread or device exists"""
_GRACE_S = 2.0
"""Seconds a worker gets to end by itself, then again before it is killed"""


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
        self._snapshots: dict[int, dict[int, Snapshot]] = defaultdict(dict)
        self._failed: dict[int, Failed] = {}
        self._done: dict[int, Done] = {}

    @cached_property
    def task(self) -> Task:
        return self.job.task()

    @cached_property
    def blocks(self) -> list[Block]:
        """The whole network, for scoring: the workers' weights are copied into it."""
        job = self.job
        stages = partition(len(job.network), job.stages)
        return [job.network.block(s, job.seed).to(job.device, job.dtype) for s in stages]

    def run(self) -> Outcome:
        world = self.settings.world
        context = mp.get_context(_START_METHOD)
        task = getattr(self.job.task, "func", self.job.task)
        preload = [worker_main.__module__, "torch._dynamo", task.__module__]
        context.set_forkserver_preload(preload)
        pipes = [context.Pipe(duplex=False) for _ in range(world)]
        writers = [writer for _, writer in pipes]
        board = context.RawArray("q", SLOTS * world)
        processes: ProcessContext = start_processes(  # type: ignore[no-untyped-call]
            worker_main,
            (self.settings, writers, board),
            world,
            join=False,
            start_method=_START_METHOD,
        )
        try:
            for writer in writers:
                writer.close()
            self._listen([reader for reader, _ in pipes], processes, board)
        finally:
            _end(processes.processes)
        return self._finish()

    def _listen(self, readers: list[Connection], processes: ProcessContext, board: Any) -> None:
        """Until every pipe has ended.

        Raises:
            WorkerFailed: a worker died or raised.
        """
        first, ended = 0, False
        while readers or not ended:
            for ready in wait([*readers, *processes.sentinels], timeout=0.2):
                if ready in readers and not self._hear(ready):
                    readers.remove(ready)
            try:
                ended = processes.join(timeout=0, grace_period=_GRACE_S)
            except ProcessException as error:
                first = error.error_index
                break
        for reader in readers:
            while self._hear(reader):
                pass
        if len(self._done) < self.settings.world:
            raise self._failure(processes, first, board)

    def _hear(self, reader: Any) -> bool:
        """Take one message; False at the end of the pipe."""
        try:
            message: Message = reader.recv()
        except (EOFError, OSError):
            return False
        match message:
            case Loss(step, value):
                self.outcome.losses.append(value)
                self.observer.on_loss(step, value)
            case Snapshot(steps, stage):
                stages = self._snapshots[steps]
                stages[stage] = message
                if len(stages) == self.job.stages and self._sound(steps):
                    self._evaluate(steps, self._snapshots.pop(steps))
            case Failed(rank):
                self._failed[rank] = message
            case Done(rank):
                self._done[rank] = message
        return True

    def _sound(self, steps: int) -> bool:
        """Whether the run had not diverged by the last of these updates."""
        return self.outcome.losses[steps - 1] <= self.job.divergence_loss

    def _evaluate(self, steps: int, stages: dict[int, Snapshot]) -> None:
        """The metric of version `steps`, on the weights that the stages handed over."""
        for stage, block in enumerate(self.blocks, start=1):
            mine = [*block.parameters(), *block.buffers()]
            given = [*stages[stage].weights, *stages[stage].buffers]
            with torch.no_grad():
                for tensor, array in zip(mine, given, strict=True):
                    tensor.copy_(torch.from_numpy(array))
        with evaluating(self.blocks, self.job) as forward:
            self.outcome.metrics.append((steps, self.task.evaluate(forward)))
        self.observer.on_metric(*self.outcome.metrics[-1])

    def _failure(self, processes: ProcessContext, first: int, board: Any) -> WorkerFailed:
        """The first cause: a signal from outside, an error that is not about a lost peer, or an
        end without a word."""
        codes = [process.exitcode or 0 for process in processes.processes]
        killed = [r for r, code in enumerate(codes) if code < 0 and code != -signal.SIGTERM]
        raised = [rank for rank, failed in self._failed.items() if not failed.secondary]
        silent = [
            rank
            for rank, code in enumerate(codes)
            if code >= 0 and rank not in self._failed and rank not in self._done
        ]
        rank = (killed or raised or silent or [first])[0]
        cause = ""
        if rank in self._failed:
            how, cause = "raised an error", "\n" + self._failed[rank].text
        elif codes[rank] < 0:
            how = f"was ended by {signal.Signals(-codes[rank]).name}"
        else:
            how = f"ended with exit code {codes[rank]}"
        doing = last_seen(board, rank)
        return WorkerFailed(f"worker {rank} of {self.settings.world} {how} while {doing}{cause}")

    def _finish(self) -> Outcome:
        outcome, job = self.outcome, self.job
        workers = self._done.values()
        final = {stage.stage: stage for done in workers for stage in done.stages}
        if not self._sound(outcome.steps):
            outcome.status = "diverged"
        elif evaluation_due(job, outcome.steps):
            self._evaluate(outcome.steps, final)
        ordered = [final[stage] for stage in sorted(final)]
        outcome.weights = [torch.from_numpy(w) for stage in ordered for w in stage.weights]
        delays = (delay for done in workers for delay in done.delays)
        outcome.delays = sorted(delays, key=lambda delay: delay.stage)
        outcome.memory = sum((done.memory for done in workers), start=Memory())
        outcome.utilization = sum(done.utilization for done in workers) / len(self._done)
        outcome.loop_s = max(done.loop_s for done in workers)
        for phase in phases(job):
            outcome.drains += phase.flushes(outcome.steps)
        return outcome


def _end(processes: list[Any]) -> None:
    """No process is left."""
    for process in processes:
        if process.is_alive():
            process.terminate()
    for process in processes:
        process.join(_GRACE_S)
        if process.is_alive():
            process.kill()
            process.join()
