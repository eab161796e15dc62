"""A diverging run ends at the same step, with the same weights, on both engines.

The loss of one chosen micro-batch is made huge or NaN, so that the end falls on every kind of step:
the first, the last of T3's warm-up, the first after it, the last of all. Workers hear of the end
from their neighbours at different ticks; nobody may be left waiting, nothing may be done twice.
"""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from core_cases import SMALL_RESNET, Images, Regression, assert_same, dense, make_job

from data.task import Microbatch
from reproduce.engine import run_pipeline
from reproduce.job import Job, Observer
from reproduce.reference import run_reference

METHODS = ["gpipe", "pipedream", "t1+t2+t3", "hogwild"]
STEPS, WARMUP, N = 9, 4, 2


class Exploding(Regression):
    """The loss of micro-batch `bad` is `factor` times what it should be."""

    def __init__(self, bad: int, factor: float) -> None:
        super().__init__()
        self.bad, self.factor = bad, factor

    def microbatch(self, m: int) -> Microbatch:
        inputs, target = super().microbatch(m)
        return Microbatch(inputs, target * (self.factor if m == self.bad else 1.0))


def exploding(method: str, step: int, factor: float = 1e6, **settings: object) -> Job:
    task = partial(Exploding, step * N + N - 1, factor)
    settings = {"stages": 6, "steps": STEPS, "sync_steps": WARMUP, **settings}
    return make_job(dense(6), task, method, microbatches=N, **settings)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("step", [0, WARMUP - 1, WARMUP, STEPS - 1])
@pytest.mark.parametrize("method", METHODS)
def test_the_end_is_the_same_on_both_engines(method: str, step: int, workers: int) -> None:
    job = exploding(method, step)
    expected = run_reference(job)
    assert (expected.status, expected.diverged_at) == ("diverged", step)
    found = run_pipeline(job, workers, max_send_delay=0.01)
    assert_same(found, expected)
    assert found.diverged_at == step
    assert found.last_finite_loss == expected.last_finite_loss


@pytest.mark.parametrize("step", [WARMUP - 2, WARMUP - 1, WARMUP, STEPS - 2])
@pytest.mark.parametrize("method", ["t1+t2", "t1+t2+t3"])
def test_under_recompute(method: str, step: int) -> None:
    """Two segments of three, cut by the borders of workers: the end falls into the warm-up, whose
    recomputations are exact, and into the phase after it, whose recomputations T2 corrects."""
    job = exploding(method, step, segment=3)
    expected = run_reference(job)
    assert (expected.status, expected.diverged_at) == ("diverged", step)
    assert_same(run_pipeline(job, 4, max_send_delay=0.01), expected)


@pytest.mark.parametrize("schedule", ["ticks", "1f1b"])
def test_with_a_worker_for_every_stage(schedule: str) -> None:
    job = exploding("async", 2, schedule=schedule)
    assert_same(run_pipeline(job, 6, max_send_delay=0.01), run_reference(job))


def test_a_loss_that_is_not_a_number() -> None:
    job = exploding("t1+t2", 5, math.nan)
    expected = run_reference(job)
    assert expected.status == "diverged"
    assert math.isnan(expected.losses[-1])
    assert math.isfinite(expected.last_finite_loss)
    assert_same(run_pipeline(job, 3), expected)


@pytest.mark.parametrize("method", METHODS)
def test_a_diverged_version_is_not_scored(method: str) -> None:
    """Evaluation is due after the very update that follows the huge loss."""
    job = exploding(method, 5, eval_every=1)
    expected = run_reference(job)
    assert [steps for steps, _ in expected.metrics] == [1, 2, 3, 4, 5]
    assert_same(run_pipeline(job, 3), expected)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_learning_rate_that_is_too_large(workers: int) -> None:
    job = make_job(
        SMALL_RESNET,
        Images,
        "async",
        stages=7,
        steps=30,
        optimizer=partial(torch.optim.SGD, lr=30.0),
        divergence_loss=20.0,
        eval_every=7,
    )
    expected = run_reference(job)
    assert expected.status == "diverged"
    assert 1 < expected.steps < 30
    assert_same(run_pipeline(job, workers, max_send_delay=0.01), expected)


class Heard(Observer):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.losses: list[tuple[int, float]] = []
        self.metrics: list[tuple[int, float]] = []

    def on_loss(self, step: int, loss: float) -> None:
        self.losses.append((step, loss))

    def on_metric(self, step: int, value: float) -> None:
        self.metrics.append((step, value))


@pytest.mark.parametrize("step", [4, STEPS])
def test_an_observer_hears_all_of_it_once(step: int) -> None:
    job = exploding("t1", step, eval_every=3)
    for run in (run_reference, partial(run_pipeline, workers=2)):
        heard = Heard()
        outcome = run(job, observer=heard)
        assert heard.losses == list(enumerate(outcome.losses))
        assert heard.metrics == outcome.metrics
        assert outcome.steps == min(step + 1, STEPS)
