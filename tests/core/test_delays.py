"""Delays as they are, seen from inside the network, against the formulas of the paper.

Every stage holds a number that falls by exactly 1 with each update and writes it into the boundary
in every forward pass, so the age of the weights is read off the weights themselves and not off any
bookkeeping of the engine. The delays that a run reports are held against that, and both against
formulas written out here.
"""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from core_cases import counters, read_log

from reproduce.engine import run_pipeline
from reproduce.hogwild import TRUNCATION, RandomDelays, delay_bound
from reproduce.job import StageDelay
from reproduce.methods import METHODS
from reproduce.phases import stage_delays
from reproduce.reference import ReferenceStage, run_reference
from reproduce.stage_context import StageContext

ASYNCHRONOUS = [name for name, row in METHODS.items() if row.schedule == "pipeline"]
RANDOM = [name for name, row in METHODS.items() if row.delays is not None]
PLAIN = {"annealing_steps": 0, "sync_steps": 3}
"""Learning rates stay as they are, so every update takes off 1"""


def between(schedule: str, stages: int, i: int) -> int:
    """Gradients that reach stage i between the two passes of a micro-batch."""
    return {"ticks": 2 * (stages - i) + 1, "1f1b": stages - i}[schedule]


@pytest.mark.parametrize("schedule", ["ticks", "1f1b"])
@pytest.mark.parametrize(("stages", "n"), [(4, 1), (4, 3), (7, 2)])
@pytest.mark.parametrize("method", ASYNCHRONOUS)
def test_forward_passes_meet_the_version_of_the_formula(
    method: str, stages: int, n: int, schedule: str, tmp_path: Path
) -> None:
    warmup = PLAIN["sync_steps"] if METHODS[method].warmup else 0
    path = tmp_path / "log"
    job = counters(path, method, stages, microbatches=n, steps=18, schedule=schedule, **PLAIN)
    outcome = run_pipeline(job, 2)
    log = read_log(path)
    assert len(log) == 18 * n
    for m, values in log.items():
        for i, v in enumerate(values, start=1):
            since = m - warmup * n
            delayed = warmup + max(0, (since - between(schedule, stages, i)) // n)
            assert -v == (m // n if since < 0 else delayed)
    for i, delay in enumerate(outcome.delays, start=1):
        tau = Fraction(between(schedule, stages, i), n)
        stash = method == "pipedream"
        assert delay == StageDelay(i, tau, tau if stash else Fraction(0))
        assert stage_delays(job, i) == (delay.tau_fwd, delay.tau_bkwd)


def test_gpipe_has_no_delay(tmp_path: Path) -> None:
    path = tmp_path / "log"
    job = counters(path, "gpipe", 5, microbatches=3, steps=6, **PLAIN)
    outcome = run_pipeline(job, 3)
    assert all(-v == m // 3 for m, values in read_log(path).items() for v in values)
    assert outcome.delays == [StageDelay(i, Fraction(0), Fraction(0)) for i in range(1, 6)]
    assert outcome.drains == 6


@pytest.mark.parametrize("engine", ["pipeline", "reference"])
def test_a_run_too_short_for_a_steady_state_says_so(engine: str, tmp_path: Path) -> None:
    """P = 8, N = 1, 6 steps: stage i needs 2(P-i)+1 micro-batches to fill."""
    job = counters(tmp_path / "log", "async", 8, microbatches=1, steps=6, **PLAIN)
    outcome = run_pipeline(job, 2) if engine == "pipeline" else run_reference(job)
    known = {i: Fraction(2 * (8 - i) + 1) for i in (6, 7, 8)}
    assert {d.stage: d.tau_fwd for d in outcome.delays} == dict.fromkeys(range(1, 9)) | known


@pytest.mark.parametrize(("method", "warmup"), [("async", 0), ("t1+t2+t3", 3), ("t1", 0)])
def test_a_pipeline_is_flushed_at_the_end_and_by_the_warmup_only(
    method: str, warmup: int, tmp_path: Path
) -> None:
    job = counters(tmp_path / "log", method, 3, microbatches=2, steps=8, eval_every=2, **PLAIN)
    assert run_pipeline(job, 3).drains == warmup + 1


# Hogwild!


def context(tau: Fraction, stage: int = 1, seed: int = 0) -> StageContext:
    return StageContext(
        stage=stage, tau_fwd=tau, tau_bkwd=tau, annealing_steps=0, decay=0.1, seed=seed
    )


@pytest.mark.parametrize("method", RANDOM)
def test_random_delays_are_those_drawn(method: str, tmp_path: Path) -> None:
    """P = 3, N = 2: means of 5/2, 3/2 and 1/2 before rounding, never beyond 8, 4 and 2."""
    path, n, steps = tmp_path / "log", 2, 60
    job = counters(path, method, 3, microbatches=n, steps=steps, **PLAIN)
    outcome = run_pipeline(job, 2)
    ages = np.array([[m // n + v for v in values] for m, values in sorted(read_log(path).items())])
    assert (ages >= 0).all()
    assert (ages.max(axis=0) <= [8, 4, 2]).all()
    assert (ages[0::n] == ages[1::n]).all(), "one delay a step"
    for i, of_stage in enumerate(ages.T, start=1):
        drawn = RandomDelays(context(Fraction(2 * (3 - i) + 1, n), i, job.seed))
        expected = [min(t, drawn.delay(t)) for t in range(steps)]
        assert of_stage[0::n].tolist() == expected
        assert outcome.delays[i - 1].tau_fwd == outcome.delays[i - 1].tau_bkwd


def test_random_delays_have_the_mean_that_t1_is_told(tmp_path: Path) -> None:
    """Drawn often by a stage of the reference, against what T1 and the records are given."""
    job = counters(tmp_path / "log", "hogwild+t1", 3, microbatches=1)
    for i in (1, 2, 3):
        told, _ = stage_delays(job, i)
        assert told == RandomDelays.expected(Fraction(2 * (3 - i) + 1))
        delays = ReferenceStage(job, i, job.network.block(range(i - 1, i), 0)).delays
        assert delays is not None
        drawn = np.array([delays.delay(t) for t in range(10_000)])
        assert drawn.mean() == pytest.approx(float(told), abs=4 * drawn.std() / 100)


def test_reported_random_delays_are_close_to_the_expected_mean(tmp_path: Path) -> None:
    steps = 600
    job = counters(tmp_path / "log", "hogwild", 3, microbatches=1, steps=steps, **PLAIN)
    for delay in run_pipeline(job, 1).delays:
        tau = float(RandomDelays.expected(Fraction(2 * (3 - delay.stage) + 1)))
        assert float(delay.tau_fwd) == pytest.approx(tau, abs=4 * tau / steps**0.5)


def test_random_delays_are_reported_in_steady_state_only(tmp_path: Path) -> None:
    """While fewer updates have been made than a draw may go back, ages are cut short.

    P = 8, N = 1 and 40 steps: on stage 1 a delay may be 45, so that no step is in steady state.
    """
    job = counters(tmp_path / "log", "hogwild", 8, microbatches=1, steps=40, **PLAIN)
    assert delay_bound(Fraction(15)) == 45
    assert run_reference(job).delays[0].tau_fwd is None


@pytest.mark.parametrize("tau", [Fraction(1, 4), Fraction(3, 2), Fraction(7), Fraction(213, 16)])
def test_the_distribution_is_a_truncated_exponential_in_whole_updates(tau: Fraction) -> None:
    draws = 20_000
    delays = RandomDelays(context(tau))
    drawn = np.array([delays.delay(t) for t in range(draws)])
    bound, scale, mass = round(3 * float(tau)), float(tau), 1 - math.exp(-3.0)
    assert TRUNCATION == 3.0
    assert delays.bound == delay_bound(tau) == bound
    assert drawn.min() >= 0
    assert drawn.max() <= bound

    def below(x: float) -> float:  # Pr[X <= x] of the exponential cut off at 3 scales
        return (1 - math.exp(-min(max(x, 0.0), 3 * scale) / scale)) / mass

    probability = np.array([below(d + 0.5) - below(d - 0.5) for d in range(bound + 1)])
    assert probability.sum() == pytest.approx(1.0)
    found = np.bincount(drawn, minlength=bound + 1) / draws
    error = 5 * np.sqrt(probability * (1 - probability) / draws)
    assert (np.abs(found - probability) <= error + 1e-12).all()
    mean = float(np.arange(bound + 1) @ probability)
    assert float(RandomDelays.expected(tau)) == pytest.approx(mean)
    assert drawn.mean() == pytest.approx(mean, abs=5 * scale / draws**0.5)


def test_random_delays_are_pure_and_keyed_by_seed_stage_and_step() -> None:
    def draw(stage: int, seed: int) -> list[int]:
        delays = RandomDelays(context(Fraction(9), stage, seed))
        return [delays.delay(t) for t in range(50)]

    backwards = RandomDelays(context(Fraction(9), 2, 3))
    assert [backwards.delay(t) for t in reversed(range(50))][::-1] == draw(2, 3)
    assert draw(2, 3) != draw(3, 3)
    assert draw(2, 3) != draw(2, 4)
    assert draw(2, 3)[:-1] != draw(2, 3)[1:]


def test_no_delay_to_scale_is_no_delay() -> None:
    """The last stage of 1f1b."""
    delays = RandomDelays(context(Fraction(0)))
    assert [delays.delay(t) for t in range(20)] == [0] * 20
    assert delays.bound == 0
    assert RandomDelays.expected(Fraction(0)) == 0
