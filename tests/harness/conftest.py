"""A store of its own for each test, a small table, and an engine that does as it is told."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

import reproduce.engine
from reproduce.__main__ import app
from reproduce.job import Job, Memory, Observer, Outcome, StageDelay, WorkerFailed
from reproduce.tracking import MlflowClient, Run

TABLE = """
[defaults]
workers = 2
microbatches = 4
batch_size = 32
steps = 6
lr = 0.01
eval_every = 3
annealing_steps = 8
sync_steps = 2

[network.digits-resnet50]
methods = ["gpipe", "t1", "t1+t2"]
width = 2
stages = 8
momentum = 0.9
decay = 0.1
"""


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store's file without a run; making one takes seconds, copying it does not."""
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def results(results: Path, empty_store: Path) -> Path:
    """The results folder of this test, with a store."""
    results.mkdir()
    shutil.copy(empty_store, results / "mlflow.db")
    return results


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(TABLE)
    return path


@pytest.fixture
def cli() -> Callable[..., Result]:
    """`python -m reproduce` in this process."""

    def invoke(*arguments: object) -> Result:
        return CliRunner().invoke(app, [str(argument) for argument in arguments])

    return invoke


class FakeEngine:
    """Stands where `run_pipeline` does: a made-up run, or the failure a cell is marked for."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.placed: list[tuple[int, int]] = []
        self.failures: dict[str, BaseException] = {}
        self.diverge: set[str] = set()
        self.diverge_at = 4

    def __call__(self, job: Job, workers: int, observer: Observer, threads: int) -> Outcome:
        self.jobs.append(job)
        self.placed.append((workers, threads))
        outcome = Outcome(memory=Memory(100, 100, 50, 25, 0, 1000), utilization=0.75, drains=1)
        for step in range(job.steps):
            bad = job.method.name in self.diverge and step == self.diverge_at
            outcome.losses.append(math.nan if bad else 2.0 - 0.1 * step)
            observer.on_loss(step, outcome.losses[-1])
            if bad:
                outcome.status = "diverged"
                break
            if step == 3 and job.method.name in self.failures:
                raise self.failures[job.method.name]
            if (step + 1) % 3 == 0:
                outcome.metrics.append((step + 1, 90.0 - step))
                observer.on_metric(*outcome.metrics[-1])
        outcome.weights = [torch.arange(3.0)]
        if outcome.status == "finished":
            outcome.scores, outcome.texts = {"made_up": 12.5}, {"words.txt": "one\nzwölf\n"}
        outcome.delays = [
            StageDelay(1, Fraction(15, 4), Fraction(0)),
            StageDelay(2, None, None),
        ]
        return outcome

    @property
    def methods(self) -> list[str]:
        return [job.method.name for job in self.jobs]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    fake = FakeEngine()
    monkeypatch.setattr(reproduce.engine, "run_pipeline", fake)
    return fake


WORKER_DIED = WorkerFailed("worker 1 of 2 died in the backward of stage 5, micro-batch 12")


def runs(results: Path, experiment: str = "small") -> list[Run]:
    """The runs of a table's experiment, oldest first."""
    client = MlflowClient(f"sqlite:///{results / 'mlflow.db'}")
    found = client.get_experiment_by_name(experiment)
    if found is None:
        return []
    order = ["attributes.start_time ASC"]
    return list(client.search_runs([found.experiment_id], order_by=order))
