"""The harness's store and table, and an engine whose result depends on the settings it is given."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from typer.testing import CliRunner, Result

import reproduce.engine
from ablations.__main__ import app
from reproduce.job import Job, Observer, Outcome

from ..harness.conftest import empty_store, results, table

__all__ = ["empty_store", "results", "table"]


@pytest.fixture
def tune() -> Callable[..., Result]:
    """`python -m ablations tune` in this process."""

    def invoke(*arguments: object) -> Result:
        return CliRunner().invoke(app, ["tune", *(str(argument) for argument in arguments)])

    return invoke


class Engine:
    """Best at D = 0.3 and seed 0; diverges above D = 0.6, half-way, after doing very well."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.failures: dict[int, BaseException] = {}
        """By the number of the run, from 0"""
        self.meanwhile: dict[int, Callable[[], None]] = {}
        """What happens elsewhere during that run"""

    def __call__(self, job: Job, workers: int, observer: Observer, threads: int) -> Outcome:
        number = len(self.jobs)
        self.jobs.append(job)
        outcome = Outcome()
        for step in range(job.steps):
            bad = job.decay > 0.6 and step == 4
            outcome.losses.append(math.nan if bad else 2.0)
            observer.on_loss(step, outcome.losses[-1])
            if bad:
                outcome.status = "diverged"
                break
            if step == 1 and number in self.meanwhile:
                self.meanwhile[number]()
            if step == 3 and number in self.failures:
                raise self.failures[number]
            if (step + 1) % 3 == 0:
                value = 99.0 if job.decay > 0.6 else 90.0 - 100 * abs(job.decay - 0.3) - job.seed
                outcome.metrics.append((step + 1, value))
                observer.on_metric(*outcome.metrics[-1])
        outcome.weights = [torch.arange(3.0)]
        return outcome


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    fake = Engine()
    monkeypatch.setattr(reproduce.engine, "run_pipeline", fake)
    return fake
