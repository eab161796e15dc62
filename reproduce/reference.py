"""The reference engine: one process, the whole model, a history of weight versions.

It follows the definitions and knows nothing of ticks, messages or workers: micro-batch m = 0, 1,
... goes forward and backward through the whole model before m + 1 starts, and each stage picks
from its history the versions that the schedule says. The pipeline engine must agree with it to the
last bit.
"""

from __future__ import annotations

import math
import time
from itertools import islice

import torch
from torch import Tensor
from torch.func import functional_call

from data.task import Task
from models.partition import partition
from models.unit import Block, Boundary
from reproduce.delays import DelayMeter
from reproduce.escapes import check
from reproduce.evaluation import evaluating
from reproduce.interception import Interception, WeightReader
from reproduce.job import Job, Observer, Outcome, evaluation_due, place
from reproduce.phases import Phase, microbatches_to_fill, phases, random_delays
from reproduce.update import StageUpdate


class ReferenceStage:
    """Stage i with the versions of its weights that a pass may still read."""

    def __init__(self, job: Job, stage: int, block: Block) -> None:
        self.method, self.stage, self.seed = job.method, stage, job.seed
        self.block = block.to(job.device, job.dtype)
        self.names, weights = zip(*self.block.named_parameters(), strict=True)
        self.weights = list(weights)
        self.update = StageUpdate(job, stage, self.weights)
        self.delays = random_delays(job, stage)
        self.depth = 1 + math.ceil(microbatches_to_fill(job, stage) / job.microbatches)
        self.version = 0
        self.history = {0: self.snapshot()}
        self.gradients: list[Tensor | None] = [None] * len(self.weights)
        self.meter = DelayMeter(stage, job.microbatches, microbatches_to_fill(job, stage))

    def snapshot(self) -> list[Tensor]:
        return [w.detach().clone() for w in self.weights]

    def forward_version(self, phase: Phase, m: int) -> int:
        if self.delays is None:
            return phase.forward_version(m, self.stage)
        return max(0, self.version - self.delays.delay(self.version))

    def forward(self, phase: Phase, m: int, boundary: Boundary) -> tuple[Boundary, list[Tensor]]:
        """The outgoing boundary, and the weights it was computed with (leaves of the graph)."""
        v_fwd = self.forward_version(phase, m)
        v_bkwd = v_fwd if self.method.stash else self.version
        if not phase.warmup:
            self.meter.count(self.version - v_fwd, self.version - v_bkwd)
        weights = [w.detach().requires_grad_() for w in self.history[v_fwd]]
        with Interception(weights).forward(self.reader(v_bkwd)):
            arguments = {"seed": self.seed, "microbatch": m}
            named = dict(zip(self.names, weights, strict=True))
            return functional_call(self.block, named, boundary, arguments), weights

    def reader(self, version: int) -> WeightReader:
        return lambda index: self.update.backward_weight(index, self.history[version][index])

    def accumulate(self, gradients: list[Tensor | None]) -> None:
        for index, gradient in enumerate(gradients):
            total = self.gradients[index]
            if gradient is not None:
                self.gradients[index] = gradient.clone() if total is None else total + gradient

    def step(self, k: int | None) -> None:
        self.update.apply(self.gradients, k)
        self.gradients = [None] * len(self.weights)
        self.version += 1
        self.history[self.version] = self.snapshot()
        self.history.pop(self.version - self.depth, None)


def run_reference(job: Job, observer: Observer | None = None) -> Outcome:
    """Train `job` by the definitions.

    Raises:
        ValueError: a job that cannot run (see `check`).
    """
    observer, started = observer or Observer(), time.monotonic()
    check(job)
    task, outcome = job.task(), Outcome()
    stages = [
        ReferenceStage(job, i, job.network.block(units, job.seed))
        for i, units in enumerate(partition(len(job.network), job.stages), start=1)
    ]
    looping = time.monotonic()
    for phase, t in ((each, t) for each in phases(job) for t in each.updates):
        outcome.losses.append(mini_batch(job, phase, stages, task, t))
        observer.on_loss(t, outcome.losses[-1])
        if not outcome.losses[-1] <= job.divergence_loss:
            outcome.status = "diverged"
            break
        if evaluation_due(job, t + 1):
            with evaluating([stage.block for stage in stages], job) as forward:
                outcome.metrics.append((t + 1, task.evaluate(forward)))
            observer.on_metric(*outcome.metrics[-1])
    outcome.loop_s = time.monotonic() - looping
    outcome.weights = [w.detach().cpu() for stage in stages for w in stage.weights]
    outcome.delays = [stage.meter.result() for stage in stages]
    outcome.wall_s = time.monotonic() - started
    return outcome


def mini_batch(job: Job, phase: Phase, stages: list[ReferenceStage], task: Task, t: int) -> float:
    """Step t: N micro-batches, one update of every stage. Returns the mean loss."""
    total = torch.zeros((), device=job.device, dtype=job.dtype)
    for m in range(t * job.microbatches, (t + 1) * job.microbatches):
        inputs, target = task.microbatch(m)
        boundary, used = place(inputs, job), []
        for stage in stages:
            boundary, weights = stage.forward(phase, m, boundary)
            used.append(weights)
        loss = task.loss(boundary, target.to(job.device)) / job.microbatches
        leaves = [w for weights in used for w in weights]
        gradients = iter(torch.autograd.grad(loss, leaves, allow_unused=True))
        for stage in stages:
            stage.accumulate(list(islice(gradients, len(stage.weights))))
        total = total + loss.detach()
    for stage in stages:
        stage.step(None if phase.warmup else t - phase.first_step)
    return total.item()
