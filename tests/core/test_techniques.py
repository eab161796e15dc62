"""T1 and T2 as they are applied in a run, against their equations.

Every stage holds a number whose gradient is always 1 and writes it into the boundary, so each step
it makes *is* the learning rate that was applied to it: alpha_{k,i} is read off the weights, not off
an optimizer. T2 is held against the closed form of its recursion under constant updates.
"""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from core_cases import counters, exponential, ramp_then_cosine, read_log

from reproduce.discrepancy import Discrepancy
from reproduce.engine import run_pipeline
from reproduce.hogwild import RandomDelays
from reproduce.job import Job
from reproduce.phases import stage_context
from reproduce.rescheduling import Rescheduling, exponent
from reproduce.stage_context import StageContext

P, N, STEPS, K = 4, 2, 24, 10


def run_counters(method: str, path: Path, **settings: object) -> tuple[Job, list[list[float]]]:
    """The learning rates applied, [stage][step], to the last step that a forward pass saw."""
    settings = {"microbatches": N, "steps": STEPS, "annealing_steps": K, **settings}
    job = counters(path, method, P, **settings)
    outcome = run_pipeline(job, 2)
    final = [w.item() for w in outcome.weights]
    seen = [[0.0] for _ in range(P)]
    for _, values in sorted(read_log(path).items()):
        for of_stage, v in zip(seen, values, strict=True):
            if v != of_stage[-1]:
                of_stage.append(v)
    rates = [[a - b for a, b in pairwise(v)] for v in seen]
    for applied, last, v in zip(rates, final, seen, strict=True):
        assert sum(applied) == pytest.approx(-v[-1])
        assert last <= v[-1]
    return job, rates


def tau_of(i: int) -> float:
    return (2 * (P - i) + 1) / N


@pytest.mark.parametrize("method", ["t1", "t1+t2"])
def test_applied_learning_rate(method: str, tmp_path: Path) -> None:
    _, rates = run_counters(method, tmp_path / "log")
    for i, applied in enumerate(rates, start=1):
        assert len(applied) > K + 2, "the annealing is seen to its end"
        for k, rate in enumerate(applied):
            p = 1 - min(k / K, 1)
            assert rate == pytest.approx(1.0 / max(tau_of(i), 1.0) ** p, rel=1e-9)
        assert applied[0] == pytest.approx(1 / max(tau_of(i), 1))
        assert applied[K:] == pytest.approx([1.0] * len(applied[K:]))
    assert rates[-1] == pytest.approx([1.0] * len(rates[-1])), "tau = 1/2 is floored at 1"


@pytest.mark.parametrize("method", ["gpipe", "pipedream", "async", "hogwild"])
def test_methods_without_t1_are_not_rescheduled(method: str, tmp_path: Path) -> None:
    _, rates = run_counters(method, tmp_path / "log")
    if method != "hogwild":  # whose forward passes see versions in any order
        assert all(rate == 1.0 for applied in rates for rate in applied)


def test_k_counts_from_the_first_asynchronous_step(tmp_path: Path) -> None:
    _, rates = run_counters("t1+t2+t3", tmp_path / "log", sync_steps=6)
    for i, applied in enumerate(rates, start=1):
        assert applied[:6] == [1.0] * 6
        for k, rate in enumerate(applied[6:]):
            p = 1 - min(k / K, 1)
            assert rate == pytest.approx(1.0 / max(tau_of(i), 1.0) ** p, rel=1e-9)


@pytest.mark.parametrize("scheduler", [exponential, ramp_then_cosine])
@pytest.mark.parametrize("method", ["t1", "t1+t2+t3"])
def test_the_base_schedule_does_not_feel_t1(method: str, scheduler: object, tmp_path: Path) -> None:
    """Schedulers that chain would compound a factor left behind in the optimizer."""
    _, rates = run_counters(method, tmp_path / "log", scheduler=scheduler, sync_steps=3)
    first = 3 if method == "t1+t2+t3" else 0
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    base_scheduler, base = scheduler(optimizer), []
    for _ in range(STEPS):
        base.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        base_scheduler.step()
    for i, applied in enumerate(rates, start=1):
        for t, rate in enumerate(applied):
            p = 1 - min((t - first) / K, 1) if t >= first else 0
            assert rate == pytest.approx(base[t] / max(tau_of(i), 1.0) ** p, rel=1e-9)


def two_groups(weights: object) -> torch.optim.Optimizer:
    return torch.optim.SGD([{"params": list(weights), "lr": 0.5}], lr=99.0)


def test_every_parameter_group_is_rescheduled(tmp_path: Path) -> None:
    _, rates = run_counters("t1", tmp_path / "log", optimizer=two_groups)
    assert rates[0][0] == pytest.approx(0.5 / tau_of(1))
    assert rates[0][-1] == pytest.approx(0.5)


def test_annealing_of_zero_steps_is_no_rescheduling(tmp_path: Path) -> None:
    _, rates = run_counters("t1", tmp_path / "log", annealing_steps=0)
    assert all(rate == 1.0 for applied in rates for rate in applied)


def test_hogwild_reschedules_by_its_expected_delay(tmp_path: Path) -> None:
    job, _ = run_counters("hogwild+t1", tmp_path / "log")
    for i in range(1, P + 1):
        factor = Rescheduling(stage_context(job, i)).factor(0)
        mean = float(RandomDelays.expected(Fraction(2 * (P - i) + 1, N)))
        assert factor == pytest.approx(1 / max(mean, 1.0))
    assert mean < tau_of(P - 1)


def test_exponent() -> None:
    assert [exponent(k, 4) for k in range(7)] == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0, 0.0]
    assert exponent(0, 0) == 0.0


# T2.


def context(tau: Fraction, decay: float, *weights: torch.Tensor) -> StageContext:
    return StageContext(
        stage=1, tau_fwd=tau, tau_bkwd=Fraction(0), annealing_steps=0, decay=decay, seed=0,
        weights=weights,
    )  # fmt: skip


@pytest.mark.parametrize("decay", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("tau", [Fraction(1, 4), Fraction(3, 2), Fraction(213, 16)])
def test_delta_under_constant_updates(tau: Fraction, decay: float) -> None:
    """delta_t = (1 - gamma^t) step and gamma^tau = D: after tau updates a share of 1 - D of delta
    is about the newest tau updates; in the long run u = w - tau step, what the forward read."""
    weight = torch.tensor([1.0, -2.0], dtype=torch.float64)
    step = torch.tensor([0.5, 0.25], dtype=torch.float64)
    discrepancy = Discrepancy(context(tau, decay, weight))
    gamma = decay ** (1 / float(tau))
    assert discrepancy.gamma == pytest.approx(gamma)
    assert discrepancy.gamma ** float(tau) == pytest.approx(decay)
    torch.testing.assert_close(discrepancy.backward_weight(0, weight), weight)
    for t in range(1, 400):
        before, weight = weight, weight + step
        discrepancy.observe([before], [weight])
        expected = (1 - gamma**t) * step
        torch.testing.assert_close(discrepancy.delta[0], expected, rtol=1e-9, atol=1e-12)
        found = discrepancy.backward_weight(0, weight)
        torch.testing.assert_close(found, weight - float(tau) * expected)
    if gamma**400 < 1e-12:
        torch.testing.assert_close(found, weight - float(tau) * step)


def test_a_correction_of_nothing_where_both_passes_agree() -> None:
    weight = torch.tensor([3.0])
    discrepancy = Discrepancy(context(Fraction(0), 0.1, weight))
    discrepancy.observe([torch.tensor([1.0])], [weight])
    assert torch.equal(discrepancy.backward_weight(0, weight), weight)


def test_delta_has_a_buffer_for_every_weight_and_leaves_weights_alone() -> None:
    weights = [torch.ones(2, 3, requires_grad=True), torch.ones(4, requires_grad=True)]
    discrepancy = Discrepancy(context(Fraction(2), 0.1, *weights))
    assert [b.shape for b in discrepancy.buffers] == [w.shape for w in weights]
    assert not any(b.requires_grad for b in discrepancy.buffers)
    discrepancy.backward_weight(0, weights[0])
    assert torch.equal(weights[0], torch.ones(2, 3))


def test_the_correction_starts_with_the_first_asynchronous_update(tmp_path: Path) -> None:
    """A warm-up as long as the run: T2 never acts, and the run is GPipe's."""
    settings = {"microbatches": N, "steps": 6, "optimizer": partial(torch.optim.SGD, lr=0.5)}
    digests = {
        run_pipeline(counters(tmp_path / m, m, P, sync_steps=6, **settings), 2).weights_sha256
        for m in ("gpipe", "t1+t2+t3")
    }
    assert len(digests) == 1
