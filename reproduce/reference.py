"""The reference engine: one process, the whole model, a history of weight versions.

It follows the definitions and knows nothing of ticks, messages or workers: micro-batch m = 0, 1,
... goes forward and backward through the whole model before m + 1 starts, and each stage picks
from its history the versions that the schedule says. With PipeMare Recompute, the graph of a
segment is made once more, on the weights that the schedule says, before its backward pass. The
pipeline engine must agree with it to the last bit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call

from data.task import Task
from models.partition import partition
from models.unit import Block, Boundary
from reproduce.approximation import ApproximationMeter
from reproduce.delays import DelayMeter
from reproduce.escapes import check
from reproduce.evaluation import evaluating, score_final
from reproduce.interception import Interception, WeightReader
from reproduce.job import Job, Observer, Outcome, evaluation_due, place
from reproduce.phases import (
    Phase,
    microbatches_to_fill,
    own_schedule,
    phases,
    random_delays,
    recomputes_exactly,
    recomputes_on_other_weights,
)
from reproduce.update import StageUpdate


class ReferenceStage:
    """Stage i with the versions of its weights that a pass may still read."""

    def __init__(self, job: Job, stage: int, block: Block) -> None:
        self.job, self.method, self.stage = job, job.method, stage
        self.block = block.to(job.device, job.dtype)
        self.names, weights = zip(*self.block.named_parameters(), strict=True)
        self.weights = list(weights)
        self.update = StageUpdate(job, stage, self.weights)
        self.delays = random_delays(job, stage)
        self.depth = 1 + math.ceil(microbatches_to_fill(job, stage) / job.microbatches)
        after = own_schedule(job).gradients_after_recompute(stage)
        self.recompute_depth = 1 + math.ceil(after / job.microbatches)
        self.version = 0
        self.history: dict[int, list[Tensor]] = {}
        self.recompute_history: dict[int, list[Tensor]] = {}
        """What a recomputation reads whose newest weights are of this version"""
        self.remember()
        self.gradients: list[Tensor | None] = [None] * len(self.weights)
        self.filling = microbatches_to_fill(job, stage)
        self.meter = DelayMeter(stage, job.microbatches, self.filling)
        self.approximation = ApproximationMeter(stage)

    def remember(self) -> None:
        """The newest version, from now on; forget those that nothing reads any more."""
        newest = [w.detach().clone() for w in self.weights]
        self.history[self.version] = newest
        self.history.pop(self.version - self.depth, None)
        if recomputes_on_other_weights(self.job, self.stage):
            self.recompute_history[self.version] = [
                self.update.recompute_weight(index, w) for index, w in enumerate(newest)
            ]
            self.recompute_history.pop(self.version - self.recompute_depth, None)

    def forward_version(self, phase: Phase, m: int) -> int:
        if self.delays is None:
            return phase.forward_version(m, self.stage)
        return max(0, self.version - self.delays.delay(self.version))

    def forward(self, phase: Phase, m: int, boundary: Boundary) -> tuple[Boundary, list[Tensor]]:
        """F: the outgoing boundary, and the weights it was computed with (leaves of the graph)."""
        v_fwd = self.forward_version(phase, m)
        v_bkwd = self.backward_version(v_fwd)
        if not phase.warmup:
            self.meter.count(self.version - v_fwd, self.version - v_bkwd)
            if self.job.measure_discrepancy and self.measures(phase, m):
                read = self.reader(v_bkwd)
                u = [read(index) for index in range(len(self.weights))]
                self.approximation.count(self.history[self.version], self.history[v_fwd], u)
        return self.compute(m, boundary, self.history[v_fwd], v_bkwd, {})

    def recompute(self, phase: Phase, m: int, boundary: Boundary) -> tuple[Boundary, list[Tensor]]:
        """R: the same once more, on the weights of its own moment, with the buffers left alone."""
        v_fwd = self.forward_version(phase, m)
        if recomputes_exactly(self.job, phase):
            weights = self.history[v_fwd]
        else:
            weights = self.recompute_history[phase.recompute_version(m, self.stage)]
        buffers = {name: b.clone() for name, b in self.block.named_buffers()}
        return self.compute(m, boundary, weights, self.backward_version(v_fwd), buffers)

    def measures(self, phase: Phase, m: int) -> bool:
        """Once an update, in steady state."""
        since = m - phase.first_microbatch
        return since >= self.filling and m % self.job.microbatches == 0

    def backward_version(self, v_fwd: int) -> int:
        return v_fwd if self.method.stash else self.version

    def compute(
        self,
        m: int,
        boundary: Boundary,
        weights: list[Tensor],
        v_bkwd: int,
        buffers: dict[str, Tensor],
    ) -> tuple[Boundary, list[Tensor]]:
        leaves = [w.detach().requires_grad_() for w in weights]
        with Interception(leaves).forward(self.reader(v_bkwd)):
            arguments = {"seed": self.job.seed, "microbatch": m}
            named = dict(zip(self.names, leaves, strict=True)) | buffers
            return functional_call(self.block, named, boundary, arguments), leaves

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
        self.remember()


def run_reference(job: Job, observer: Observer | None = None) -> Outcome:
    """Train `job` by the definitions.

    Raises:
        ValueError: a job that cannot run (see `check`).
    """
    observer, started = observer or Observer(), time.monotonic()
    if job.method.lockfree:
        raise ValueError(f"method {job.method.name!r} is lock-free, so it has no reference")
    if job.trace:
        raise ValueError("the reference engine keeps no timeline; use the pipeline engine")
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
    if outcome.status == "finished":
        score_final(outcome, task, [stage.block for stage in stages], job)
    outcome.weights = [w.detach().cpu() for stage in stages for w in stage.weights]
    outcome.delays = [stage.meter.result() for stage in stages]
    if job.measure_discrepancy:
        outcome.approximation = [stage.approximation.result() for stage in stages]
    outcome.wall_s = time.monotonic() - started
    return outcome


def mini_batch(job: Job, phase: Phase, stages: list[ReferenceStage], task: Task, t: int) -> float:
    """Step t: N micro-batches, one update of every stage. Returns the mean loss."""
    total = torch.zeros((), device=job.device, dtype=job.dtype)
    for m in range(t * job.microbatches, (t + 1) * job.microbatches):
        total = total + micro_batch(job, phase, stages, task, m)
    for stage in stages:
        stage.step(None if phase.warmup else t - phase.first_step)
    return total.item()


class Chain(NamedTuple):
    """A graph of consecutive stages, cut off at both ends."""

    stages: list[ReferenceStage]
    entering: Boundary
    leaving: Boundary
    weights: list[list[Tensor]]
    """The leaves, by stage"""

    def backward(self, gradients: Boundary | None) -> Boundary:
        """The gradients of the entering boundary, from those of the leaving one (None: the loss);
        those of the weights go to the stages."""
        inputs = [t for t in self.entering if t.requires_grad]
        leaves = [w for weights in self.weights for w in weights]
        outputs = [t for t in self.leaving if t.requires_grad]
        found = torch.autograd.grad(outputs, [*inputs, *leaves], gradients, allow_unused=True)
        rest = iter(found[len(inputs) :])
        for stage in self.stages:
            stage.accumulate(list(islice(rest, len(stage.weights))))
        pairs = zip(inputs, found, strict=False)
        return tuple(torch.zeros_like(t) if g is None else g for t, g in pairs)


Pass = Callable[[ReferenceStage, Phase, int, Boundary], tuple[Boundary, list[Tensor]]]


def micro_batch(job: Job, phase: Phase, stages: list[ReferenceStage], task: Task, m: int) -> Tensor:
    """Forward and backward of one micro-batch, segment by segment. Returns its loss / N."""
    inputs, target = task.microbatch(m)

    def chain(segment: range, passing: Pass, entering: Boundary) -> Chain:
        mine, boundary, weights = [stages[i - 1] for i in segment], entering, []
        for stage in mine:
            boundary, leaves = passing(stage, phase, m, boundary)
            weights.append(leaves)
        if mine[-1] is stages[-1]:
            boundary = (task.loss(boundary, target.to(job.device)) / job.microbatches,)
        return Chain(mine, entering, boundary, weights)

    boundary, chains = place(inputs, job), []
    for segment in phase.schedule.segments:
        chains.append(chain(segment, ReferenceStage.forward, boundary))
        leaving = chains[-1].leaving
        boundary = tuple(t.detach().requires_grad_(t.requires_grad) for t in leaving)
    gradients: Boundary | None = None
    for segment, graph in zip(reversed(phase.schedule.segments), reversed(chains), strict=True):
        if phase.schedule.recomputes(segment[0]):
            graph = chain(segment, ReferenceStage.recompute, graph.entering)
        gradients = graph.backward(gradients)
    return boundary[0].detach()
