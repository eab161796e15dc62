"""Utilization as measured, on stages whose passes take a known time, against its model.

Every pass of every stage sleeps for the same time and computes next to nothing, so the clock does
not care how busy this machine is. GPipe on K workers must come out at N / (N + K - 1), a method
without flushes at about 1 once the pipeline is full.
"""

from __future__ import annotations

import time
from functools import partial

import pytest
from core_cases import Affine, Regression, make_job, network
from torch import Tensor

from models.unit import Boundary
from reproduce.engine import run_pipeline
from reproduce.job import Outcome
from reproduce.schedule import gpipe_utilization

PASS_S = 0.02


def _sleep(_: Tensor) -> None:
    time.sleep(PASS_S)


class Slow(Affine):
    """A linear layer whose forward and whose backward take `PASS_S`."""

    def forward(self, x: Tensor, *rest: Tensor) -> Boundary:
        (y,) = super().forward(x, *rest)
        if y.requires_grad and not x.is_meta:
            time.sleep(PASS_S)
            y.register_hook(_sleep)
        return (y,)


def run(method: str, workers: int, n: int, steps: int) -> Outcome:
    job = make_job(
        network(*[partial(Slow, 6, 6)] * workers),
        Regression,
        method,
        stages=workers,
        microbatches=n,
        steps=steps,
    )
    return run_pipeline(job, workers)


@pytest.mark.parametrize(("workers", "n"), [(2, 1), (3, 2), (3, 6)])
def test_gpipe(workers: int, n: int) -> None:
    outcome = run("gpipe", workers, n, steps=12 // n)
    assert outcome.utilization == pytest.approx(gpipe_utilization(workers, n), abs=0.1)


@pytest.mark.parametrize("method", ["pipedream", "t1+t2"])
def test_without_flushes(method: str) -> None:
    """36 micro-batches in 36 + 2 P - 1 ticks of two passes each."""
    outcome = run(method, 3, 2, steps=18)
    assert 0.8 < outcome.utilization <= 1.0
    assert outcome.loop_s == pytest.approx(36 * 2 * PASS_S, rel=0.35)


def test_a_single_worker_never_waits() -> None:
    assert run("t1", 1, 2, steps=4).utilization > 0.9
