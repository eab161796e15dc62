"""Scores the snapshots of a run in the process that started it: no worker waits for a score."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import torch

from data.task import Task
from models.partition import partition
from models.unit import Block
from reproduce.engine.report import Snapshot
from reproduce.evaluation import evaluating, score_final
from reproduce.job import Job, Observer, Outcome


class Scorer:
    """Adds metrics to an outcome and tells them to its observer."""

    def __init__(self, job: Job, outcome: Outcome, observer: Observer) -> None:
        self.job, self.outcome, self.observer = job, outcome, observer

    @cached_property
    def task(self) -> Task:
        return self.job.task()

    @cached_property
    def blocks(self) -> list[Block]:
        """The whole network: the workers' weights are copied into it."""
        job = self.job
        stages = partition(len(job.network), job.stages)
        return [job.network.block(s, job.seed).to(job.device, job.dtype) for s in stages]

    def evaluate(self, steps: int, stages: Mapping[int, Snapshot]) -> None:
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

    def finish(self, steps: int, stages: Mapping[int, Snapshot]) -> None:
        """The metric and the final scores of the weights that a finished run ends with."""
        self.evaluate(steps, stages)
        score_final(self.outcome, self.task, self.blocks, self.job)
