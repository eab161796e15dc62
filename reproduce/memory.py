"""The memory model: bytes a run holds, from the schedule and the shapes alone.

    weights + gradients + optimizer state + delta (T2) + old versions (PipeDream, Hogwild!)

Stage i of PipeDream keeps up to ceil((2(P-i)+1) / N) old versions, Hogwild! the longest delay that
can be drawn, every other method none. Lock-free workers hold a copy of the weights and gradients
each. Activations are left out: they depend on what each operator saves, and are measured.
"""

from __future__ import annotations

import torch
from torch import nn

from models.partition import partition
from reproduce.job import Job, Memory
from reproduce.phases import phases, random_delays
from reproduce.update import StageUpdate


def modelled_memory(job: Job) -> Memory:
    """What a run of `job` holds at its peak, without `activations_peak`. Allocates nothing."""
    with torch.device("meta"):
        units = [blueprint().to(job.dtype) for blueprint in job.network.blueprints]
    total = Memory()
    for stage, mine in enumerate(partition(len(units), job.stages), start=1):
        weights = [w for j in mine for w in units[j].parameters()]
        total += stage_memory(job, stage, weights)
    return total


def stage_memory(job: Job, stage: int, weights: list[nn.Parameter]) -> Memory:
    """The same for one stage, whose weights are on the meta device."""
    size = sum(w.nbytes for w in weights)
    update = StageUpdate(job, stage, weights)
    at_once = min(job.steps, job.lockfree_workers) if job.method.lockfree else 1
    update.apply([torch.zeros_like(w) for w in weights], None)
    return Memory(
        weights=size,
        gradients=at_once * size,
        optimizer=update.optimizer_bytes(),
        discrepancy=update.correction_bytes(),
        stash=old_versions(job, stage) * size,
    )


def old_versions(job: Job, stage: int) -> int:
    """Most old versions of its weights that stage i keeps at once."""
    if job.method.lockfree:
        return job.lockfree_workers
    drawn = random_delays(job, stage)
    if drawn is not None:
        return min(job.steps, drawn.bound)
    if not job.method.stash:
        return 0
    last = phases(job)[-1]
    return last.schedule.stash_versions(stage, last.steps)
