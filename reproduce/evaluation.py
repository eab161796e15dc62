"""The whole network in eval mode, for the metric and the final scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from data.task import Task
from models.unit import Block, Boundary
from reproduce.job import Job, Outcome, place


@contextmanager
def evaluating(blocks: Sequence[Block], job: Job) -> Iterator[Callable[[Boundary], Boundary]]:
    """Yields the network's forward pass; the blocks are in eval mode meanwhile, without graph."""

    def forward(boundary: Boundary) -> Boundary:
        boundary = place(boundary, job)
        for block in blocks:
            boundary = block(*boundary, seed=job.seed, microbatch=-1)
        return boundary

    modes = [block.training for block in blocks]
    try:
        for block in blocks:
            block.eval()
        with torch.no_grad():
            yield forward
    finally:
        for block, mode in zip(blocks, modes, strict=True):
            block.train(mode)


def score_final(outcome: Outcome, task: Task, blocks: Sequence[Block], job: Job) -> None:
    """Add the task's final scores and texts of a finished run, whose last version was evaluated."""
    with evaluating(blocks, job) as forward:
        final = task.final(forward)
    outcome.scores |= final.scores
    outcome.texts |= final.texts
