"""Timing the project's own engines. Each run is cold: its first steps count."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from reproduce.bench.measure import Timing
from reproduce.engine import run_pipeline
from reproduce.job import Job, Outcome
from reproduce.reference import run_reference


@contextmanager
def threads(count: int) -> Iterator[None]:
    """This process computes with so many threads meanwhile."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def time_pipeline(job: Job, workers: int) -> Timing:
    """The pipeline engine, one thread a worker: from the barrier after building to the last tick
    of the slowest worker."""
    with threads(1):
        return _timing(job, run_pipeline(job, workers, threads=1))


def time_reference(job: Job) -> Timing:
    """The reference engine on one thread, without building."""
    with threads(1):
        return _timing(job, run_reference(job))


def _timing(job: Job, outcome: Outcome) -> Timing:
    if outcome.status != "finished":
        raise RuntimeError(f"{job.method.name} {outcome.status} at step {outcome.diverged_at}")
    return Timing(
        seconds=outcome.loop_s,
        steps=outcome.steps,
        microbatches=outcome.steps * job.microbatches,
        losses=outcome.losses,
        utilization=outcome.utilization,
    )
