"""The reference engine: one process, the whole model, a history of weight versions.

It follows the definitions and knows nothing of ticks, messages or workers: micro-batch m = 0, 1,
... goes forward and backward through the whole model before m + 1 starts, and each stage picks
from its history the versions that the schedule says. With PipeMare Recompute, the graph of a
segment is made once more, on the weights that the schedule says, before its backward pass. The
pipeline engine must agree with it to the last bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from data.task import Task
from models.partition import partition
from models.unit import Boundary
from reproduce.escapes import check
from reproduce.evaluation import evaluating, score_final
from reproduce.job import Job, Observer, Outcome, evaluation_due, place
from reproduce.phases import Phase, phases
from reproduce.reference_stage import ReferenceStage


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
    """Forward and backward of one micro-batch, segment by segment. Returns its loss / N.

    Of a segment that is recomputed, the forward pass counts for what enters and leaves it only.
    """
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
