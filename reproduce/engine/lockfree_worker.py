"""A lock-free worker: mini-batch after mini-batch on a private copy of the shared weights."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from threading import Barrier, BrokenBarrierError
from typing import NamedTuple

import torch
from torch import Tensor

from models.unit import Boundary
from reproduce.engine.gradients import accumulate
from reproduce.engine.report import Doing, Done, Loss, Report
from reproduce.engine.shared import Shared
from reproduce.engine.transport import PeerLost
from reproduce.interception import Interception
from reproduce.job import Job, Memory, evaluation_due, place
from reproduce.update import StageUpdate

_START_S = 300.0
"""Seconds within which all workers must be ready to start"""


class LockFreeSettings(NamedTuple):
    """What all workers of a run are told."""

    job: Job
    threads: int
    memory: Tensor
    """Of `Shared`"""
    start: Barrier
    """Passed once, before the first mini-batch, so that all have the same load"""


def work(rank: int, settings: LockFreeSettings, report: Report) -> None:
    """A worker of the lock-free engine."""
    torch.set_num_threads(settings.threads)
    # A worker's first update may be the run's tenth: its schedulers then start with nine steps.
    warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
    shared = Shared(settings.job, settings.memory)
    worker = LockFreeWorker(settings.job, rank, shared, report)
    try:
        settings.start.wait(_START_S)
    except BrokenBarrierError as error:
        raise PeerLost("not all workers started") from error
    worker.run()
    report.tell(
        Done(
            rank=rank,
            stages=[],
            delays=[],
            memory=worker.memory(),
            utilization=worker.utilization(),
            loop_s=worker.wall_s,
            drawn_delays=worker.drawn_delays,
            filling_delays=worker.filling_delays,
        )
    )


class LockFreeWorker:
    """Worker `rank`: its private network, and an optimizer over the shared weights."""

    def __init__(self, job: Job, rank: int, shared: Shared, report: Report) -> None:
        self.job, self.rank, self.shared, self.report = job, rank, shared, report
        self.task = job.task()
        self.blocks = [stage.block for stage in shared.stages]
        self.weights = [w for block in self.blocks for w in block.parameters()]
        self.updates = [StageUpdate(job, stage.stage, stage.weights) for stage in shared.stages]
        self._scheduled = 0
        """Steps of the learning-rate schedules taken"""
        self.drawn_delays: Counter[int] = Counter()
        self.filling_delays: Counter[int] = Counter()
        """Those of the run's first K updates, before which the others had not all written"""
        self.wall_s = 0.0
        self._activations: dict[int, int] = {}
        self._gradient_bytes = 0
        for stage, update in zip(shared.stages, self.updates, strict=True):
            for weight, state in zip(stage.weights, stage.state, strict=True):
                if state:
                    update.optimizer.state[weight] = state
        self._buffers = [
            (stage.block.get_submodule(path.rpartition(".")[0]), path.rpartition(".")[2], theirs)
            for stage in shared.stages
            for (path, _), theirs in zip(stage.block.named_buffers(), stage.buffers, strict=True)
        ]
        """(module, name in it, the shared tensor)"""
        for module, name, theirs in self._buffers:
            getattr(module, name).set_(theirs)

    def run(self) -> None:
        """Mini-batches rank, rank + K, ... until the last, or until the run has diverged."""
        started = time.perf_counter()
        for t in range(self.rank, self.job.steps, self.job.lockfree_workers):
            if self.shared.over:
                break
            self.mini_batch(t)
        self.wall_s = time.perf_counter() - started

    def mini_batch(self, t: int) -> None:
        before = self.shared.updates_by_others(self.rank)
        self._read()
        loss, gradients = self._gradients(t)
        if not loss <= self.job.divergence_loss:
            self.shared.end(self.rank)
        k = self._write(gradients)
        delay = self.shared.updates_by_others(self.rank) - before
        self.drawn_delays[delay] += 1
        self.filling_delays[delay] += k < self.job.lockfree_workers
        self.report.tell(Loss(t, loss))
        if t + 1 < self.job.steps and evaluation_due(self.job, t + 1):
            for stage in self.shared.stages:
                self.report.tell(stage.snapshot(t + 1))

    def _read(self) -> None:
        """The private weights are what the shared ones are now; nobody waits for anybody."""
        with torch.no_grad():
            theirs = (w for stage in self.shared.stages for w in stage.weights)
            for mine, shared in zip(self.weights, theirs, strict=True):
                mine.copy_(shared)

    def _gradients(self, t: int) -> tuple[float, list[Tensor | None]]:
        """Mean loss of mini-batch t, and the gradients of the private weights."""
        job, n = self.job, self.job.microbatches
        total = torch.zeros((), dtype=job.dtype)
        gradients: list[Tensor | None] = [None] * len(self.weights)
        for m in range(t * n, (t + 1) * n):
            loss = self._forward(m)
            self.report.doing(Doing.BACKWARD, 0, m)
            found = torch.autograd.grad(loss, self.weights, allow_unused=True)
            accumulate(gradients, found)
            total = total + loss.detach()
        return total.item(), gradients

    def _forward(self, m: int) -> Tensor:
        """The loss of micro-batch m over N."""
        inputs, target = self.task.microbatch(m)
        boundary = place(inputs, self.job)
        with self._measuring(boundary):
            for stage, block in enumerate(self.blocks, start=1):
                self.report.doing(Doing.FORWARD, stage, m)
                boundary = block(*boundary, seed=self.job.seed, microbatch=m)
            self._share_buffers()
            return self.task.loss(boundary, target) / self.job.microbatches

    def _share_buffers(self) -> None:
        """A tensor that a unit assigned to a buffer, in place of writing to it, is written to the
        shared one, which takes its place again. (Not by `set_`: the graph may hold the other.)"""
        for module, name, theirs in self._buffers:
            mine = getattr(module, name)
            if mine.data_ptr() != theirs.data_ptr():
                theirs.copy_(mine.detach())
                setattr(module, name, theirs)

    def _measuring(self, inputs: Boundary) -> AbstractContextManager[object]:
        """Activations are measured on the first micro-batch: the shapes never change."""
        if self._activations:
            return nullcontext()
        for tensor in inputs:
            self._count_activation(tensor)
        hooks = Interception(self.weights)
        return hooks.forward(lambda index: self.weights[index], self._count_activation)

    def _count_activation(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        self._activations[storage.data_ptr()] = storage.nbytes()

    def _write(self, gradients: list[Tensor | None]) -> int:
        """One update in place. Learning rates are those after all updates done so far, whose number
        is returned."""
        self._gradient_bytes = sum(g.nbytes for g in gradients if g is not None)
        k, rest = self.shared.updates(), iter(gradients)
        for stage, update in zip(self.shared.stages, self.updates, strict=True):
            if update.scheduler is not None:
                for _ in range(k - self._scheduled):
                    update.scheduler.step()
            update.apply(list(islice(rest, len(stage.weights))), k)
        self._scheduled = k + 1
        self.shared.count_update(self.rank)
        return k

    def memory(self) -> Memory:
        """Bytes that are this worker's alone; the private copy of the weights is its stash."""
        return Memory(
            gradients=self._gradient_bytes,
            stash=sum(w.nbytes for w in self.weights),
            activations_peak=sum(self._activations.values()),
        )

    def utilization(self) -> float:
        """Busy time over wall time of this worker, from its first mini-batch to its last."""
        return 1.0 - self.report.told_s / self.wall_s if self.wall_s else 1.0
