"""How well T2 knows the forward weights, against a closed form.

Every stage is a number v that falls by 1 with each update (N = 1, no rescheduling), so that after m
updates v = -m, the forward weights are -(m - tau) and delta = -(1 - gamma^m):

    ratio    = |v - tau delta - v_fwd| / |v - v_fwd| = |-tau + tau (1 - gamma^m)| / tau = gamma^m
    distance = tau / (m - tau)
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from core_cases import SMALL_RESNET, Images, assert_same, counters, make_job

from reproduce.engine import run_pipeline
from reproduce.job import Job, StageApproximation
from reproduce.reference import run_reference

P, STEPS, D = 3, 14, 0.4


def measured(job: Job) -> list[StageApproximation]:
    return run_reference(replace(job, measure_discrepancy=True)).approximation


def of_counters(method: str, path: Path, **changes: object) -> list[StageApproximation]:
    settings = {"microbatches": 1, "steps": STEPS, "annealing_steps": 0, "decay": D, **changes}
    return measured(counters(path, method, P, **settings))


def test_closed_form(tmp_path: Path) -> None:
    for i, found in enumerate(of_counters("t1+t2", tmp_path / "log"), start=1):
        tau = 2 * (P - i) + 1
        gamma = D ** (1 / tau)
        steady = range(tau + 1, STEPS)  # at m = tau the forward weights are 0
        assert found.stage == i
        assert found.count == len(steady)
        assert found.ratio == pytest.approx(sum(gamma**m for m in steady) / len(steady))
        assert found.distance == pytest.approx(sum(tau / (m - tau) for m in steady) / len(steady))


@pytest.mark.parametrize(("method", "ratio"), [("async", 1.0), ("pipedream", 0.0)])
def test_without_t2(method: str, ratio: float, tmp_path: Path) -> None:
    for found in of_counters(method, tmp_path / "log"):
        assert found.ratio == ratio
        assert found.count > 0


def test_nothing_is_stale_under_gpipe(tmp_path: Path) -> None:
    expected = [StageApproximation(i, None, None, 0) for i in range(1, P + 1)]
    assert of_counters("gpipe", tmp_path / "log") == expected


def test_once_an_update_after_the_warmup(tmp_path: Path) -> None:
    """W = 3, N = 4: on stage 1 the first 5 asynchronous micro-batches fill the pipeline."""
    found = of_counters("t1+t2+t3", tmp_path / "log", microbatches=4, sync_steps=3)
    assert [stage.count for stage in found] == [STEPS - 3 - 2, STEPS - 3 - 1, STEPS - 3 - 1]


@pytest.mark.parametrize("segment", [0, 2])
def test_measuring_changes_nothing(segment: int) -> None:
    job = make_job(SMALL_RESNET, Images, "t1+t2+t3", eval_every=5, segment=segment)
    plain, outcome = run_reference(job), run_reference(replace(job, measure_discrepancy=True))
    assert_same(outcome, plain)
    assert plain.approximation == []
    assert all(0 < stage.ratio < 2 and stage.distance > 0 for stage in outcome.approximation)


def test_the_pipeline_engine_has_nothing_to_measure_with(tmp_path: Path) -> None:
    job = replace(counters(tmp_path / "log", "t1+t2", P), measure_discrepancy=True)
    with pytest.raises(ValueError, match="use run_reference"):
        run_pipeline(job, 1)
