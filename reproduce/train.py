"""From a cell to a job, and from a job to an outcome on the engine that the cell asks for."""

from __future__ import annotations

import torch

from reproduce.cells import Cell
from reproduce.errors import BadInput
from reproduce.job import Job, Observer, Outcome
from reproduce.optimization import optimizer, scheduler, try_step
from reproduce.update import check_recompute


def make_job(cell: Cell) -> Job:
    """The run that a cell describes."""
    s = cell.settings
    return Job(
        network=cell.network(),
        task=s.task(),
        method=cell.method,
        stages=s.stages,
        microbatches=s.microbatches,
        steps=s.steps,
        optimizer=optimizer(s),
        scheduler=scheduler(s),
        annealing_steps=s.annealing_steps,
        decay=s.decay,
        t1_exponent=s.t1_exponent,
        t1_floor=s.t1_floor,
        sync_steps=s.sync_steps,
        schedule=s.schedule,
        segment=s.segment,
        measure_discrepancy=s.measure_discrepancy,
        seed=s.seed,
        eval_every=s.eval_every,
        divergence_loss=s.divergence_loss,
        lockfree_workers=s.lockfree_workers,
        trace=s.trace,
    )


def prepare(cell: Cell) -> Job:
    """The job of a cell, with its optimizer and its task tried out.

    Raises:
        BadInput: one of them refuses its settings; names the cell.
    """
    job = make_job(cell)
    try:
        try_step(job.optimizer)
        job.task()
        check_recompute(job)
        if job.method.lockfree:
            from reproduce.engine.shared import initial_state

            initial_state(job.optimizer, [torch.zeros(1)])
    except ValueError as error:
        raise BadInput(f"{cell.name}: {error}") from error
    return job


def train(cell: Cell, job: Job, observer: Observer) -> Outcome:
    """Run the job on the cell's engine, with the cell's number of threads a worker.

    Raises:
        EscapesInterception: before training, for a network the method cannot train.
        WorkerFailed: a worker died or raised.
    """
    threads = cell.settings.threads
    if job.method.lockfree:
        from reproduce.engine import run_lockfree

        return run_lockfree(job, cell.workers, observer, threads)
    if cell.settings.engine == "reference":
        from reproduce.reference import run_reference

        torch.set_num_threads(threads)
        return run_reference(job, observer)
    from reproduce.engine import run_pipeline

    return run_pipeline(job, cell.settings.workers, observer, threads)
