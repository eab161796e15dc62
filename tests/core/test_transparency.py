"""The pipeline is transparent: whatever K_w, the timing and the placement, to the last bit the
weights, losses, metrics and delays of the reference, for every row of `METHODS`.

The evidence is a second implementation: `run_reference` knows no ticks, messages or workers. Sends
are late by up to 20 ms at random. That the rows train at all, and differently from one another, is
asserted too, so equality of nothing cannot pass.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import pytest
import torch
from core_cases import (
    DETERMINISTIC,
    RESNET_50,
    SMALL_RESNET,
    SMALL_TRANSFORMER,
    TRANSFORMER_6_6,
    Images,
    Regression,
    Sentences,
    adam,
    assert_same,
    assert_trained,
    dense,
    exponential,
    make_job,
    ramp_then_cosine,
    sgd,
)

from reproduce.engine import run_pipeline
from reproduce.job import Job
from reproduce.reference import run_reference

LATE_S = 0.02


class Case(NamedTuple):
    """A network and what trains it."""

    small: object
    deep: object
    task: object
    optimizer: object
    deep_optimizer: object
    """Gentle enough for the row without any technique"""


pictures = partial(Images, batch=8)  # a batch norm over less runs wild

CASES = {
    "resnet": Case(SMALL_RESNET, RESNET_50, pictures, sgd, partial(torch.optim.SGD, lr=1e-4)),
    "transformer": Case(SMALL_TRANSFORMER, TRANSFORMER_6_6, Sentences, adam, adam),
}


def job_of(case: Case, method: str, stages: int, microbatches: int) -> Job:
    """`stages` 0: one a unit of the deep network."""
    net = case.small if stages else case.deep
    return make_job(
        net,
        case.task,
        method,
        stages=stages or len(net),
        microbatches=microbatches,
        optimizer=case.optimizer if stages else case.deep_optimizer,
        eval_every=5,
    )


def check_transparent(job: Job, workers: tuple[int, ...] = (1, 2, 3)) -> None:
    expected = run_reference(job)
    assert_trained(expected, job)
    for count in workers:
        assert_same(run_pipeline(job, count, max_send_delay=LATE_S), expected)


def test_the_deep_networks_have_the_papers_units() -> None:
    assert len(RESNET_50) == 107
    assert len(TRANSFORMER_6_6) == 93


SIZES = [(4, 1), (4, 3), (7, 2), pytest.param(0, 4, id="a stage a unit-4", marks=pytest.mark.slow)]


@pytest.mark.parametrize(("stages", "microbatches"), SIZES)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("method", DETERMINISTIC)
def test_every_method_on_any_number_of_workers(
    method: str, case: Case, stages: int, microbatches: int
) -> None:
    check_transparent(job_of(case, method, stages, microbatches))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_rows_are_different_methods(case: Case) -> None:
    jobs = {name: job_of(case, name, 4, 1) for name in DETERMINISTIC}
    digests = {name: run_reference(job).weights_sha256 for name, job in jobs.items()}
    assert len(set(digests.values())) == len(DETERMINISTIC), digests


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_synchronous_run_does_not_depend_on_the_stages(case: Case) -> None:
    """GPipe is plain training: any P, any placement, any engine, one digest."""
    net = case.small
    digests = {
        run_reference(job_of(case, "gpipe", stages, 2)).weights_sha256
        for stages in (1, 4, len(net))
    }
    job = job_of(case, "gpipe", len(net), 2)
    digests |= {run_pipeline(job, workers).weights_sha256 for workers in (2, 5)}
    assert len(digests) == 1


@pytest.mark.parametrize("method", DETERMINISTIC)
def test_1f1b(method: str) -> None:
    job = make_job(
        SMALL_RESNET, Images, method, stages=6, microbatches=3, schedule="1f1b", eval_every=5
    )
    check_transparent(job)


@pytest.mark.parametrize(
    "scheduler", [exponential, ramp_then_cosine], ids=["exponential", "ramp_then_cosine"]
)
@pytest.mark.parametrize("method", ["gpipe", "t1+t2+t3", "hogwild+t1"])
def test_any_optimizer_and_scheduler(method: str, scheduler: object) -> None:
    job = make_job(
        SMALL_RESNET,
        Images,
        method,
        optimizer=partial(torch.optim.AdamW, lr=3e-3, weight_decay=0.1),
        scheduler=scheduler,
    )
    check_transparent(job, workers=(2,))


@pytest.mark.parametrize("schedule", ["ticks", "1f1b"])
@pytest.mark.parametrize("method", ["gpipe", "pipedream", "t1+t2+t3", "hogwild"])
def test_a_worker_for_every_stage(method: str, schedule: str) -> None:
    job = make_job(
        dense(5), Regression, method, stages=5, microbatches=3, eval_every=1, schedule=schedule
    )
    check_transparent(job, workers=(5,))


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("method", ["gpipe", "pipedream", "t1+t2+t3", "hogwild"])
def test_a_run_shorter_than_the_pipeline_is_deep(method: str, steps: int) -> None:
    """Nothing is in steady state, and T3's warm-up of 4 may be all there is."""
    job = make_job(dense(8), Regression, method, stages=8, microbatches=1, steps=steps)
    check_transparent(job, workers=(3,))


def test_double_precision() -> None:
    job = make_job(
        dense(4), Regression, "t1+t2+t3", microbatches=3, dtype=torch.float64, eval_every=5
    )
    check_transparent(job, workers=(2,))


def test_the_result_is_the_same_again_and_follows_the_seed() -> None:
    job = make_job(dense(4), Regression, "t1+t2", seed=1)
    first, again = (run_pipeline(job, 2).weights_sha256 for _ in range(2))
    other = make_job(dense(4), Regression, "t1+t2", seed=2)
    assert first == again
    assert first != run_pipeline(other, 2).weights_sha256
