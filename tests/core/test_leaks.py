"""A stage keeps what is in flight and nothing else, however long it runs.

The worker loop runs in this process with all stages of a job, on activations of a megabyte. After
the pipeline is full, neither the process nor the number of tensors may grow. Garbage collection is
off meanwhile: what a graph holds must be freed by itself, since on an accelerator nobody collects
in time. At the end, what can be reached from the worker is what the memory report says.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest
import torch
from core_cases import DETERMINISTIC, Affine, adam, dense, make_job, network
from torch import Tensor

from data.task import Microbatch, Task
from models.unit import Boundary
from reproduce.engine.process import WorkerSettings, make_worker
from reproduce.engine.report import SLOTS, Loss, Report
from reproduce.engine.worker import Worker
from reproduce.job import Job, Memory

WIDTH, BATCH = 64, 4096  # a boundary is 1 MiB
P, N, STEPS = 3, 1, 70
PAGE = os.sysconf("SC_PAGE_SIZE")


class Wide(Affine):
    """A linear layer and two operations that keep their results for the backward pass."""

    def forward(self, x: Tensor, *rest: Tensor) -> Boundary:
        return torch.tanh(torch.sigmoid(self.linear(x))), *rest


class Blob(Task):
    """A megabyte of the same numbers."""

    name, metric = "blob", "accuracy"

    def microbatch(self, m: int) -> Microbatch:
        return Microbatch((torch.full((BATCH, WIDTH), 0.1),), torch.zeros(()))

    def loss(self, outputs: Boundary, target: Tensor) -> Tensor:
        return outputs[0].square().mean()

    def evaluate(self, forward: Callable[[Boundary], Boundary]) -> float:
        return 0.0

    def resolution(self) -> float:
        return 1.0


class Watch:
    """Stands for the pipe to the launcher: takes a sample with every loss."""

    def __init__(self) -> None:
        self.resident: list[int] = []
        self.tensors: list[int] = []

    def send(self, message: Any) -> None:
        if isinstance(message, Loss):
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            self.resident.append(pages * PAGE)
            if len(self.resident) % 10 == 0:
                self.tensors.append(sum(issubclass(type(o), Tensor) for o in gc.get_objects()))


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def run(job: Job) -> tuple[Watch, Worker]:
    watch = Watch()
    report = Report(0, watch, [0] * SLOTS)  # type: ignore[arg-type]
    worker = make_worker(job, 0, WorkerSettings(job, 1, "", 1, 0.0), report)
    worker.run()
    return watch, worker


RECOMPUTED = [("gpipe", 1), ("pipedream", 1), ("t1+t2", 2)]
"""(method, stages a segment of PipeMare Recompute)"""


@pytest.mark.parametrize(("method", "segment"), [(m, 0) for m in DETERMINISTIC] + RECOMPUTED)
def test_nothing_accumulates(method: str, segment: int) -> None:
    """One activation left behind a step would be 50 MiB in the steps that are compared."""
    unit = partial(Wide, WIDTH, WIDTH)
    job = make_job(
        network(*[unit] * P), Blob, method, stages=P, microbatches=N, steps=STEPS,
        segment=segment, divergence_loss=float("inf"),
    )  # fmt: skip
    watch, _ = run(job)
    assert len(watch.resident) == STEPS
    growth = max(watch.resident[-10:]) - max(watch.resident[10:20])
    assert growth < 25 << 20, f"{growth >> 20} MiB"
    assert max(watch.tensors[2:]) <= watch.tensors[1] + 8  # random delays differ in leaves


def reachable_bytes(root: object) -> int:
    """Bytes of all tensors that can be reached from an object, not through modules or classes."""
    seen: set[int] = set()
    storages: dict[int, int] = {}
    stack = [root]
    while stack:
        item = stack.pop()
        if id(item) in seen or isinstance(item, (type, ModuleType, FunctionType, Job)):
            if not isinstance(item, FunctionType) or id(item) in seen:
                continue
            stack += [cell.cell_contents for cell in item.__closure__ or ()]
            continue
        seen.add(id(item))
        if isinstance(item, Tensor):
            storages[item.untyped_storage().data_ptr()] = item.untyped_storage().nbytes()
            stack.append(item.grad)
            continue
        stack += gc.get_referents(item)
    return sum(storages.values())


@pytest.mark.parametrize("segment", [0, 2])
@pytest.mark.parametrize("method", DETERMINISTIC)
def test_nothing_is_left_at_the_end(method: str, segment: int) -> None:
    """No activation, gradient or old version (but those a random delay may go back to)."""
    job = make_job(
        dense(4), partial(Small, 0), method, steps=12, eval_every=3, optimizer=adam, segment=segment
    )
    _, worker = run(job)
    memory = sum((stage.memory() for stage in worker.stages.values()), start=Memory())
    expected = memory.weights + memory.optimizer + memory.discrepancy
    if job.method.delays is not None:
        expected += memory.stash
    assert reachable_bytes(worker) == expected


class Small(Blob):
    """The same task on vectors of six."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def microbatch(self, m: int) -> Microbatch:
        generator = torch.Generator().manual_seed(self.seed + m)
        return Microbatch((torch.randn(3, 6, generator=generator),), torch.zeros(()))


def test_a_leak_would_be_seen() -> None:
    """The same measurement on a stage that keeps one activation a step."""
    kept: list[Tensor] = []
    unit = partial(Keeping, kept)
    job = make_job(
        network(*[unit] * P), Blob, "async", stages=P, microbatches=N, steps=STEPS,
        divergence_loss=float("inf"),
    )  # fmt: skip
    watch, _ = run(job)
    assert max(watch.resident[-10:]) - max(watch.resident[10:20]) > 35 << 20
    assert watch.tensors[-1] > watch.tensors[1] + 20


class Keeping(Wide):
    def __init__(self, kept: list[Tensor]) -> None:
        super().__init__(WIDTH, WIDTH)
        self.kept, self.passes = kept, 0

    def forward(self, x: Tensor, *rest: Tensor) -> Boundary:
        self.passes += 1
        outputs = super().forward(x, *rest)
        if self.passes % P == 0:  # one a step, over all stages
            self.kept.append(outputs[0])
        return outputs
