"""The theory against itself, against the values at hand, and against the reference engine.

Three independent things must agree: the companion matrix, the recursion in plain Python, and the
engine on a network whose gradient is (lambda + Delta) w_fwd - Delta w_bkwd.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch

from reproduce.engine import run_pipeline
from reproduce.methods import METHODS
from reproduce.reference import run_reference
from reproduce.theory import DECAY, DelayedQuadratic, stability_bound
from reproduce.theory_runs import (
    Diabetes,
    Trial,
    bisection,
    discrepancy_job,
    grows,
    regression_job,
    trial,
)


def model(delta: float, decay: float | None, tau_bkwd: int = 6) -> DelayedQuadratic:
    return DelayedQuadratic(10, tau_bkwd, delta, decay)


@pytest.mark.parametrize("tau", [0, 1, 2, 5, 10, 40, 150])
@pytest.mark.parametrize("curvature", [1.0, 3.0])
def test_without_discrepancy_the_companion_matrix_gives_the_lemma(
    tau: int, curvature: float
) -> None:
    found = DelayedQuadratic(tau, curvature=curvature).largest_stable_alpha()
    assert found == pytest.approx(stability_bound(tau, curvature), rel=1e-6)


@pytest.mark.parametrize(
    ("delta", "decay", "alpha"),
    [
        (0.0, None, 0.149),
        (0.0, DECAY, 0.149),
        (0.0, 0.5, 0.149),
        (5.0, None, 0.038),
        (5.0, DECAY, 0.104),
        (5.0, 0.5, 0.068),
        (-5.0, None, 0.059),
        (-5.0, DECAY, 0.036),
    ],
)
def test_checked_values(delta: float, decay: float | None, alpha: float) -> None:
    """Known from a scan over alpha whose grid was about 2% wide."""
    assert model(delta, decay).largest_stable_alpha() == pytest.approx(alpha, rel=0.02)


def test_by_hand() -> None:
    """tau_fwd = 1, Delta = -3/4 lambda: z^2 - z/4 + alpha (1 + 3 z) / 4 has -1 as a root at 4."""
    assert DelayedQuadratic(1, 0, -0.75).largest_stable_alpha() == pytest.approx(4, rel=1e-6)
    assert DelayedQuadratic(0).spectral_radius([0.5, 2.5]) == pytest.approx([0.5, 1.5])
    # g = 3 w_{t-1} - 2 (w_t - delta_t) with gamma = 1/4, so delta = 0, -0.075, -0.0975
    w = DelayedQuadratic(1, 0, 2.0, 0.25).trajectory(0.1, 3)
    assert w == pytest.approx([1.0, 0.9, 0.795, 0.7035])


@pytest.mark.parametrize("decay", [None, DECAY, 0.5])
@pytest.mark.parametrize("delta", [0.0, 5.0, -5.0, 1.0])
@pytest.mark.parametrize("tau_bkwd", [0, 6, 10])
def test_the_recursion_grows_as_its_spectral_radius(
    tau_bkwd: int, delta: float, decay: float | None
) -> None:
    each = model(delta, decay, tau_bkwd)
    for share in (0.98, 1.02):
        alpha = share * each.largest_stable_alpha()
        w = np.abs(each.trajectory(alpha, 4000))
        rate = (w[3000:].max() / w[1000:2000].max()) ** (1 / 2000)
        assert (rate < 1) == (share < 1)
        assert rate == pytest.approx(each.spectral_radius(alpha), abs=3e-4)


def test_stable_means_a_radius_below_one_all_the_way_up() -> None:
    for delta in (-5.0, 0.0, 5.0):
        for decay in (None, DECAY):
            each = model(delta, decay)
            alpha = each.largest_stable_alpha()
            assert (each.spectral_radius(np.linspace(0, alpha, 200)[1:]) < 1).all()
            assert each.spectral_radius(alpha * 1.001) > 1


def test_equal_delays_leave_nothing_to_correct() -> None:
    plain = DelayedQuadratic(7).largest_stable_alpha()
    assert DelayedQuadratic(7, 7, 3.0, DECAY).largest_stable_alpha() == pytest.approx(plain)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"tau_fwd": 2, "tau_bkwd": 3}, "tau_bkwd = 3"),
        ({"tau_fwd": -1, "tau_bkwd": -1}, "tau_fwd = -1"),
        ({"tau_fwd": 1, "curvature": 0.0}, "curvature"),
        ({"tau_fwd": 1, "decay": 1.0}, "decay = 1.0"),
    ],
)
def test_what_no_pipeline_has_is_refused(arguments: dict[str, float], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        DelayedQuadratic(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("decay", [None, DECAY])
@pytest.mark.parametrize("delta", [0.0, 2.5, -2.5])
def test_the_engine_follows_the_recursion(delta: float, decay: float | None) -> None:
    each = DelayedQuadratic(4, 0, delta, decay, curvature=1.5)
    outcome = run_reference(discrepancy_job(each, 0.05, 60))
    w = each.trajectory(0.05, 60)
    # A step's loss is that of its forward weights.
    forward = np.concatenate([np.ones(4), w])[:60]
    assert outcome.losses == pytest.approx(0.5 * 1.5 * forward**2, rel=1e-9)
    assert outcome.weights[0].item() == pytest.approx(w[-1], rel=1e-9)
    assert (outcome.delays[0].tau_fwd, outcome.delays[0].tau_bkwd) == (Fraction(4), Fraction(0))


@pytest.mark.slow
@pytest.mark.parametrize("decay", [None, DECAY])
@pytest.mark.parametrize("delta", [0.0, 2.5, -2.5])
def test_the_engine_diverges_where_the_curve_says(delta: float, decay: float | None) -> None:
    """By bisection, from a bracket that knows nothing of the curve."""
    each = model(delta, decay, tau_bkwd=0)

    def run(alpha: float) -> Trial:
        return trial(discrepancy_job(each, alpha, 300), alpha)

    runs = list(bisection(run, 0.01, 2.0, 0.01))
    low = max(found.alpha for found in runs if not found.diverged)
    high = min(found.alpha for found in runs if found.diverged)
    assert math.sqrt(low * high) == pytest.approx(each.largest_stable_alpha(), rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "decay"), [("async", None), ("t1+t2", DECAY)])
def test_the_pipeline_of_a_real_schedule_diverges_there_too(
    method: str, decay: float | None
) -> None:
    """P = 1, N = 1 on the tick schedule: tau_fwd = 1, live backward weights; T1 is off by K = 0."""
    each = DelayedQuadratic(1, 0, 1.5, decay)
    for share in (0.98, 1.02):
        alpha = share * each.largest_stable_alpha()
        job = replace(discrepancy_job(each, alpha, 400), method=METHODS[method])
        assert grows(run_pipeline(job, 1).losses) == (share > 1)


def test_the_regression_is_the_one_the_bound_is_about() -> None:
    task = Diabetes()
    (x,), y = task.microbatch(3)
    assert x.mean(0).abs().max() < 1e-12
    assert x.var(0, correction=0).numpy() == pytest.approx(np.ones(10))
    w = torch.zeros(10, dtype=torch.float64)
    hessian = torch.autograd.functional.hessian(lambda v: task.loss((x @ v,), y), w)
    assert task.curvature() == pytest.approx(torch.linalg.eigvalsh(hessian).max().item())
    assert task.loss((x @ w,), y).item() == pytest.approx(0.5)
    solution = torch.linalg.solve(hessian, x.T @ y / len(y))
    assert task.optimum() == pytest.approx(task.loss((x @ solution,), y).item())
    explained = task.evaluate(lambda boundary: (boundary[0] @ solution,))
    assert explained == pytest.approx(51.77, abs=0.01)  # scikit-learn's R^2 of the same fit


@pytest.mark.parametrize("tau", [0, 3])
def test_the_regression_is_stable_below_the_bound_only(tau: int) -> None:
    alpha = float(stability_bound(tau, Diabetes().curvature()))
    below, above = (trial(regression_job(s * alpha, tau, 300), s * alpha) for s in (0.95, 1.05))
    assert not below.diverged and above.diverged
    assert Diabetes().optimum() < below.final_loss < 0.3 < above.final_loss


def test_an_engine_cannot_have_old_backward_weights() -> None:
    with pytest.raises(ValueError, match="tau_bkwd = 6"):
        discrepancy_job(model(1.0, None), 0.1, 10)


def test_rounding_noise_is_no_growth() -> None:
    assert not grows([0.5, 0.25, 0.25, 0.25 * (1 + 1e-12)])
    assert grows([0.5, 0.25, 0.3, 0.26])
    assert not grows([0.1, 0.3, 0.2, 0.29])
