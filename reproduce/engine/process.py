"""The life of a worker process: rendezvous, build its own stages, run, hand over the results."""

from __future__ import annotations

import datetime
import traceback
from collections.abc import Callable
from ctypes import Array, c_longlong
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from models.partition import partition
from models.shapes import boundary_shapes
from reproduce.engine.report import Doing, Done, Failed, Report
from reproduce.engine.stage import PipelineStage
from reproduce.engine.transport import PeerLost, Transport
from reproduce.engine.worker import Worker
from reproduce.job import Job, Memory

_TIMEOUT = datetime.timedelta(minutes=5)


class WorkerSettings(NamedTuple):
    """What all workers of a run are told."""

    job: Job
    world: int
    rendezvous: str
    """An init_method of torch.distributed"""
    threads: int
    max_send_delay: float


Work = Callable[[int, Any, Report], None]
"""What a worker does, from its rank, the settings of the run and its report; picklable."""


def worker_main(
    rank: int, work: Work, settings: Any, writers: list[Connection], board: Array[c_longlong]
) -> None:
    """Entry point of worker `rank`. It keeps its own end of the pipes only."""
    for other, writer in enumerate(writers):
        if other != rank:
            writer.close()
    report = Report(rank, writers[rank], board)
    try:
        work(rank, settings, report)
    except Exception as error:
        report.tell(Failed(rank, traceback.format_exc(), isinstance(error, PeerLost)))
        raise
    report.doing(Doing.FINISHED)


def work(rank: int, settings: WorkerSettings, report: Report) -> None:
    """A worker of the pipeline engine."""
    torch.set_num_threads(settings.threads)
    job, alone = _on_own_device(settings.job, rank), settings.world == 1
    if not alone:
        dist.init_process_group(
            "nccl" if job.device.startswith("cuda") else "gloo",
            init_method=settings.rendezvous,
            rank=rank,
            world_size=settings.world,
            timeout=_TIMEOUT,
        )
    try:
        worker = make_worker(job, rank, settings, report)
        if not alone:
            _meet()
        worker.run()
        stages = worker.stages.values()
        report.tell(
            Done(
                rank=rank,
                stages=[stage.snapshot() for stage in stages],
                delays=[stage.meter.result() for stage in stages],
                memory=sum((stage.memory() for stage in stages), start=Memory()),
                utilization=worker.utilization(),
                loop_s=worker.wall_s,
                trace=worker.timeline.events if worker.timeline is not None else (),
            )
        )
    finally:
        if not alone:
            dist.destroy_process_group()


def _meet() -> None:
    """Wait until every worker is built."""
    try:
        dist.barrier()
    except RuntimeError as error:
        raise PeerLost(str(error)) from error


def _on_own_device(job: Job, rank: int) -> Job:
    if torch.device(job.device).type != "cuda":
        return job
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return replace(job, device=str(device))


def make_worker(job: Job, rank: int, settings: WorkerSettings, report: Report) -> Worker:
    """Worker `rank` with its stages: contiguous, about as many units as every other worker."""
    task, world = job.task(), settings.world
    stages = partition(len(job.network), job.stages)
    mine = partition([len(units) for units in stages], world)[rank]
    shapes = boundary_shapes(job.network, task.microbatch(0).inputs, job.dtype)
    built = []
    for i in mine:
        last = i + 1 == job.stages
        built.append(
            PipelineStage(
                job,
                i + 1,
                job.network.block(stages[i], job.seed),
                task if last else None,
                # The loss of a pass without graph goes nowhere.
                [False] if last else [t.differentiable for t in shapes[stages[i].stop - 1]],
            )
        )
    transport = None
    if world > 1:
        transport = Transport(
            entering=shapes[stages[mine[0]].start - 1] if rank > 0 else [],
            leaving=shapes[stages[mine[-1]].stop - 1] if rank < world - 1 else [],
            device=torch.device(job.device),
            max_send_delay=settings.max_send_delay,
        )
    return Worker(job, rank, world, built, task, transport, report)
