"""Synchronous training against two peers that share no code with it.

`torch.distributed.pipelining.ScheduleGPipe` on two Gloo ranks, from the same initial weights on the
same micro-batches: losses and weights agree after every step. And a plain loop over whole
mini-batches, which is what a mean over micro-batches must be for a batch-independent model.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from core_cases import Regression, dense, make_job
from torch import Tensor, nn
from torch import multiprocessing as mp
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from models.partition import partition
from models.unit import Unit
from reproduce.engine import run_pipeline
from reproduce.job import Job
from reproduce.reference import run_reference

STEPS, N, UNITS = 5, 4, 5
optimizer = partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01)


def job(steps: int, stages: int = 2) -> Job:
    return make_job(
        dense(UNITS),
        Regression,
        "gpipe",
        stages=stages,
        microbatches=N,
        steps=steps,
        optimizer=optimizer,
        dtype=torch.float64,
    )


class Bare(nn.Module):
    """A run of units between single tensors, as torch's pipeline wants it."""

    def __init__(self, units: list[Unit]) -> None:
        super().__init__()
        self.units = nn.ModuleList(units)

    def forward(self, x: Tensor) -> Tensor:
        for unit in self.units:
            (x,) = unit(x)
        return x


def mini_batch(t: int) -> tuple[Tensor, Tensor]:
    parts = [Regression().microbatch(m) for m in range(t * N, (t + 1) * N)]
    return torch.cat([p.inputs[0] for p in parts]), torch.cat([p.target for p in parts])


def build(units: range) -> Bare:
    of = job(STEPS)
    return Bare([of.network.build(j, of.seed).double() for j in units])


def torch_rank(rank: int, folder: Path) -> None:
    """Rank of torch's pipeline; leaves what it saw after every step in `folder`."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2
    )
    module = build(partition(UNITS, 2)[rank])
    stage = PipelineStage(module, rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, N, loss_fn=nn.functional.mse_loss)
    updater = optimizer(list(module.parameters()))
    seen: list[dict[str, Any]] = []
    for t in range(STEPS):
        x, target = mini_batch(t)
        losses: list[Tensor] = []
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=target, losses=losses)
        updater.step()
        updater.zero_grad()
        weights = [w.detach().clone() for w in module.parameters()]
        seen.append({"weights": weights, "losses": [loss.item() for loss in losses]})
    torch.save(seen, folder / f"rank{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def torch_run(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[float, list[Tensor]]]:
    """(loss, weights) after every step of torch's pipeline."""
    folder = tmp_path_factory.mktemp("torch_gpipe")
    run_pipeline(job(1), 2)  # so that the server of both has what a worker imports
    mp.start_processes(torch_rank, (folder,), 2, start_method="forkserver")
    first, last = (torch.load(folder / f"rank{rank}.pt") for rank in (0, 1))
    return [
        (sum(b["losses"]) / N, a["weights"] + b["weights"])
        for a, b in zip(first, last, strict=True)
    ]


def assert_close(found: list[Tensor], expected: list[Tensor]) -> None:
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("steps", range(1, STEPS + 1))
def test_step_by_step_like_torchs_gpipe(
    steps: int, torch_run: list[tuple[float, list[Tensor]]]
) -> None:
    found = run_pipeline(job(steps), 2)
    assert found.losses == pytest.approx([loss for loss, _ in torch_run[:steps]], rel=1e-12)
    assert_close(found.weights, torch_run[steps - 1][1])


@pytest.mark.parametrize("stages", [1, UNITS])
def test_like_a_loop_over_whole_mini_batches(stages: int) -> None:
    """One forward, one backward and one step for N micro-batches at once."""
    model = build(range(UNITS))
    updater, losses = optimizer(list(model.parameters())), []
    for t in range(STEPS):
        x, target = mini_batch(t)
        loss = nn.functional.mse_loss(model(x), target)
        updater.zero_grad()
        loss.backward()
        updater.step()
        losses.append(loss.item())
    expected = [w.detach() for w in model.parameters()]
    for found in (run_reference(job(STEPS, stages)), run_pipeline(job(STEPS, stages), 1)):
        assert found.losses == pytest.approx(losses, rel=1e-12)
        assert_close(found.weights, expected)
