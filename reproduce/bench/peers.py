"""Timing everybody else on the same job: the same units, initial weights, data, loss, optimizer
and updates as `gpipe`. Every peer is timed after two steps of warm-up."""

from __future__ import annotations

import importlib
import tempfile
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch import multiprocessing as mp
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.multiprocessing.spawn import start_processes

from models.partition import partition
from models.unit import Unit
from reproduce.bench.engines import threads
from reproduce.bench.measure import Timing, Unavailable
from reproduce.bench.workload import RandomTask
from reproduce.job import Job

WARMUP = 2
SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
_START_METHOD = "forkserver"


class OneTensor(nn.Module):
    """A unit without the tuple."""

    def __init__(self, unit: Unit) -> None:
        super().__init__()
        self.unit = unit

    def forward(self, x: Tensor) -> Tensor:
        (x,) = self.unit(x)
        return x


def sequential(job: Job, units: range | None = None) -> nn.Sequential:
    """These units of the job's network (or all of them) as other libraries want them."""
    units = range(len(job.network)) if units is None else units
    return nn.Sequential(*[OneTensor(job.network.build(index, job.seed)) for index in units])


def random_task(job: Job) -> RandomTask:
    task = job.task()
    if not isinstance(task, RandomTask):
        raise TypeError(f"peers read {RandomTask.__name__}, not {type(task).__name__}")
    return task


def timing(job: Job, step: Callable[[int], float]) -> Timing:
    """Time `job.steps` calls of `step` after the warm-up; it returns the mini-batch's loss."""
    losses = [step(t) for t in range(WARMUP)]
    started = time.perf_counter()
    losses += [step(t) for t in range(WARMUP, WARMUP + job.steps)]
    seconds = time.perf_counter() - started
    return Timing(seconds, job.steps, job.steps * job.microbatches, losses)


def time_plain(job: Job, cores: int, chunked: bool = True) -> Timing:
    """What one writes without any library: one process of `cores` threads, N micro-batches whose
    gradients add up (`chunked`), or the mini-batch in one go."""
    with threads(cores):
        model, task = sequential(job), random_task(job)
        optimizer = job.optimizer(model.parameters())
        parts = job.microbatches if chunked else 1

        def step(t: int) -> float:
            total = torch.zeros(())
            inputs, target = task.minibatch(t, job.microbatches)
            for x, y in zip(inputs.chunk(parts), target.chunk(parts), strict=True):
                loss = task.loss((model(x),), y) / parts
                loss.backward()  # type: ignore[no-untyped-call]
                total += loss.detach()
            optimizer.step()
            optimizer.zero_grad()
            return total.item()

        return timing(job, step)


def time_torchgpipe(job: Job, workers: int, cores: int) -> Timing:
    """torchgpipe, without checkpointing. Its partitions all live on the one device `cpu`, where
    it has one thread for them; so it is given `cores` threads within operators.

    Raises:
        Unavailable: torchgpipe is not installed.
    """
    try:
        torchgpipe: Any = importlib.import_module("torchgpipe")
    except ImportError as error:
        reason = f"no torchgpipe here ({error}): pip install -e '.[bench]'"
        raise Unavailable(reason) from error
    with threads(cores):
        task = random_task(job)
        model = torchgpipe.GPipe(
            sequential(job),
            balance=[len(units) for units in partition(len(job.network), workers)],
            devices=["cpu"] * workers,
            chunks=job.microbatches,
            checkpoint="never",
        )
        optimizer = job.optimizer(model.parameters())

        def step(t: int) -> float:
            inputs, target = task.minibatch(t, job.microbatches)
            loss = task.loss((model(inputs),), target)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            return loss.item()

        return timing(job, step)


class Ranks(NamedTuple):
    """What both ranks of torch.distributed.pipelining are told."""

    job: Job
    world: int
    schedule: Literal["gpipe", "1f1b"]
    rendezvous: str


def time_torch_pipelining(job: Job, workers: int, schedule: Literal["gpipe", "1f1b"]) -> Timing:
    """torch.distributed.pipelining on Gloo, one thread a rank: the slowest rank's time."""
    context = mp.get_context(_START_METHOD)
    with tempfile.TemporaryDirectory() as folder:
        ranks = Ranks(job, workers, schedule, f"file://{folder}/rendezvous")
        found = context.SimpleQueue()
        start_processes(  # type: ignore[no-untyped-call]
            _rank_main, (ranks, found), workers, start_method=_START_METHOD
        )
        results: list[Timing] = [found.get() for _ in range(workers)]
    slowest = max(result.seconds for result in results)
    losses = next(result.losses for result in results if result.losses[0] >= 0)
    return Timing(slowest, job.steps, job.steps * job.microbatches, losses)


def _rank_main(rank: int, ranks: Ranks, found: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=ranks.rendezvous, rank=rank, world_size=ranks.world)
    try:
        found.put(timing(ranks.job, _rank_step(rank, ranks)))
    finally:
        dist.destroy_process_group()


def _rank_step(rank: int, ranks: Ranks) -> Callable[[int], float]:
    """A step of this rank. Only the last one knows the loss; the others say -1."""
    job, task = ranks.job, random_task(ranks.job)
    module = sequential(job, partition(len(job.network), ranks.world)[rank])
    optimizer = job.optimizer(module.parameters())
    schedule = SCHEDULES[ranks.schedule](
        PipelineStage(module, rank, ranks.world, torch.device("cpu")),
        job.microbatches,
        loss_fn=lambda output, target: task.loss((output,), target),
    )

    def step(t: int) -> float:
        inputs, target = task.minibatch(t, job.microbatches)
        losses: list[Tensor] = []
        own = (inputs,) if rank == 0 else ()
        last: dict[str, Any] = (
            {"target": target, "losses": losses} if rank == ranks.world - 1 else {}
        )
        schedule.step(*own, **last, return_outputs=False)
        optimizer.step()
        optimizer.zero_grad()
        return torch.stack(losses).mean().item() if losses else -1.0

    return step
