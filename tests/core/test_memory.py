"""Memory as measured in a run, against the model and against numbers worked out by hand.

The weights, optimizer state, delta and old versions that the workers counted must be what
`modelled_memory` says from shapes and schedule alone, to the byte, for every method and K_w.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from core_cases import (
    DETERMINISTIC,
    SMALL_RESNET,
    Affine,
    Images,
    Regression,
    adam,
    dense,
    make_job,
    network,
    sgd,
)

from models.partition import partition
from reproduce.engine import run_pipeline
from reproduce.job import Job, Memory
from reproduce.memory import modelled_memory

adamw = partial(torch.optim.AdamW, lr=1e-3)


def measured(job: Job, workers: int) -> Memory:
    memory = run_pipeline(job, workers).memory
    assert memory is not None
    assert memory.activations_peak > 0
    return replace(memory, activations_peak=0)


@pytest.mark.parametrize(("stages", "n", "steps"), [(4, 1, 14), (7, 2, 9), (6, 4, 12), (6, 1, 2)])
@pytest.mark.parametrize("method", DETERMINISTIC)
def test_measured_is_modelled(method: str, stages: int, n: int, steps: int) -> None:
    job = make_job(
        dense(9), Regression, method, stages=stages, microbatches=n, steps=steps, optimizer=adam
    )
    assert measured(job, 2) == modelled_memory(job)


@pytest.mark.parametrize("schedule", ["ticks", "1f1b"])
@pytest.mark.parametrize("method", ["pipedream", "t1+t2+t3", "hogwild"])
def test_measured_is_modelled_on_any_number_of_workers(method: str, schedule: str) -> None:
    job = make_job(
        SMALL_RESNET, Images, method, stages=7, microbatches=3, schedule=schedule, optimizer=sgd
    )
    found = [measured(job, workers) for workers in (1, 3)]
    assert found == [modelled_memory(job)] * 2


# By hand: three units of 4x4 weights and 4 biases, one a stage, in single precision.

UNIT = (16 + 4) * 4
"""Bytes of one unit"""
BY_HAND = {
    "sgd": (partial(torch.optim.SGD, lr=0.01), 0),
    "sgd with momentum": (sgd, 3 * UNIT),
    # Two moments, and a number of steps for each of the 6 parameters.
    "adamw": (adamw, 2 * 3 * UNIT + 6 * 4),
}


def three(method: str, **settings: object) -> Job:
    unit = partial(Affine, 4, 4)
    task = partial(Regression, width=4)
    return make_job(network(unit, unit, unit), task, method, stages=3, **settings)


@pytest.mark.parametrize("name", BY_HAND)
@pytest.mark.parametrize("method", DETERMINISTIC)
def test_by_hand(method: str, name: str) -> None:
    """P = 3, N = 2: old versions are ceil(5/2) + ceil(3/2) + ceil(1/2) = 6 with PipeDream; Hogwild!
    goes back at most 3 tau = 7.5, 4.5 and 1.5 updates, which round to 8, 4 and 2."""
    optimizer, state = BY_HAND[name]
    job = three(method, microbatches=2, steps=20, optimizer=optimizer)
    expected = Memory(
        weights=3 * UNIT,
        gradients=3 * UNIT,
        optimizer=state,
        discrepancy=3 * UNIT if "t2" in method else 0,
        stash={"pipedream": 6, "hogwild": 14, "hogwild+t1": 14}.get(method, 0) * UNIT,
    )
    assert measured(job, 1) == expected
    assert modelled_memory(job) == expected


@pytest.mark.parametrize(("stages", "n"), [(4, 1), (4, 3), (9, 2), (9, 4)])
def test_pipedreams_stash_is_the_papers(stages: int, n: int) -> None:
    """sum over stages of ceil((2(P-i)+1)/N) times the stage, about P/N weight volumes in all."""
    job = make_job(dense(9), Regression, "pipedream", stages=stages, microbatches=n, steps=25)
    weights = [
        sum(w.nbytes for j in units for w in job.network.build(j, 0).parameters())
        for units in partition(9, stages)
    ]
    expected = sum(
        math.ceil((2 * (stages - i) + 1) / n) * size for i, size in enumerate(weights, start=1)
    )
    assert measured(job, 2).stash == expected
    assert expected >= stages / n * sum(weights) * 0.8


@pytest.mark.parametrize("method", ["async", "t1", "t1+t2", "t1+t2+t3", "gpipe"])
def test_pipemare_holds_one_copy_of_the_weights(method: str) -> None:
    memory = measured(three(method, microbatches=1, steps=15), 1)
    assert memory.stash == 0
    assert memory.weights == 3 * UNIT
    assert memory.discrepancy == (3 * UNIT if "t2" in method else 0)


@pytest.mark.parametrize("method", ["t1+t2", "pipedream"])
def test_activations_do_not_depend_on_the_workers(method: str) -> None:
    job = three(method, microbatches=1, steps=15)
    peaks = [run_pipeline(job, workers).memory.activations_peak for workers in (1, 2, 3)]
    assert max(peaks) <= 1.3 * min(peaks), peaks


def test_double_precision_is_twice_as_much() -> None:
    job = three("t1+t2", steps=4)
    single, double = modelled_memory(job), modelled_memory(replace(job, dtype=torch.float64))
    assert (double.weights, double.discrepancy) == (2 * single.weights, 2 * single.discrepancy)
    assert measured(replace(job, dtype=torch.float64), 1) == double
