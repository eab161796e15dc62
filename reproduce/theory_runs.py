"""The theory's models as jobs for the reference engine: one linear stage, a fixed delay.

A method row of its own hands the stage forward weights of exactly tau updates ago (`FixedDelay`);
its backward pass reads the live weights, corrected by T2 or not. So tau_fwd = tau, tau_bkwd = 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from data.task import Microbatch, Task
from models.unit import Boundary, Network, Unit
from reproduce.discrepancy import Discrepancy
from reproduce.job import Job
from reproduce.methods import Method
from reproduce.reference import run_reference
from reproduce.stage_context import StageContext
from reproduce.theory import DelayedQuadratic

DIVERGED = 1e6
"""A loss above this ends a run; both models start from a loss of 1/2"""


class Trial(NamedTuple):
    """One run, and whether it was stable."""

    alpha: float
    steps: int
    """Done"""
    final_loss: float
    """Of the last step, at its forward weights"""
    diverged: bool


class FixedDelay:
    """The same whole number of updates at every step."""

    def __init__(self, context: StageContext, updates: int) -> None:
        self.bound, self.mean = updates, Fraction(updates)

    def delay(self, step: int) -> int:
        return self.bound


def fixed_delay(tau: int, corrected: bool = False) -> Method:
    """Forward weights of `tau` updates ago, backward weights live, with T2 where `corrected`."""
    return Method(
        f"fixed delay of {tau}",
        "forward weights of a fixed age",
        "gpipe",
        correction=Discrepancy if corrected else None,
        delays=partial(FixedDelay, updates=tau),
    )


class Linear(Unit):
    """``(x [n, d],) -> (x w [n],)``, from w = 0."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(features))

    def forward(self, x: Tensor) -> Boundary:
        return (x @ self.w,)


class Diabetes(Task):
    """Linear regression on 442 real patients (scikit-learn's `load_diabetes`), one full batch.

    Features and target have mean 0 and variance 1; the loss is half the mean square, so its
    Hessian is X^T X / n and the loss at w = 0 is 1/2.
    """

    name, metric = "diabetes", "r2"

    def __init__(self) -> None:
        self.x, self.y = map(torch.from_numpy, _standardised())

    def microbatch(self, m: int) -> Microbatch:
        return Microbatch((self.x,), self.y)

    def loss(self, outputs: Boundary, target: Tensor) -> Tensor:
        return 0.5 * (outputs[0] - target).square().mean()

    def evaluate(self, forward: Callable[[Boundary], Boundary]) -> float:
        """The share of the target's variance explained, in percent."""
        return 100 * (1 - 2 * self.loss(forward((self.x,)), self.y).item())

    def resolution(self) -> float:
        return 1e-9

    def curvature(self) -> float:
        """lambda_max: the largest eigenvalue of the loss's Hessian."""
        return float(torch.linalg.eigvalsh(self.x.T @ self.x / len(self.x))[-1])

    def optimum(self) -> float:
        """The least loss of any w."""
        w = torch.linalg.lstsq(self.x, self.y).solution
        return self.loss((self.x @ w,), self.y).item()


@lru_cache(maxsize=1)
def _standardised() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    from sklearn.datasets import load_diabetes  # takes 1 s to import
    from sklearn.preprocessing import scale

    x, y = load_diabetes(return_X_y=True, scaled=False)
    return scale(x), scale(y)


class TwiceUsed(Unit):
    """``(one,) -> (1/2 (lambda + 2 Delta) y^2 - Delta y w,)`` with y = w one.

    The value is 1/2 lambda w^2. The gradient is (lambda + Delta) w_fwd - Delta w_bkwd: y is an
    activation, so its square gives (lambda + 2 Delta) w_fwd; in y w the weight is used twice, as
    in two layers that share it, and gives Delta w_fwd through y's value and Delta w_bkwd through
    the Jacobian of the second use.
    """

    def __init__(self, curvature: float, discrepancy: float) -> None:
        super().__init__()
        self.curvature, self.discrepancy = curvature, discrepancy
        self.w = nn.Parameter(torch.ones(1))

    def forward(self, one: Tensor) -> Boundary:
        y = self.w * one
        square = 0.5 * (self.curvature + 2 * self.discrepancy) * y.square()
        return (square - self.discrepancy * (y * self.w),)


class Value(Task):
    """The loss is what the network puts out."""

    name, metric = "value", "loss"

    def microbatch(self, m: int) -> Microbatch:
        return Microbatch((torch.ones(1),), torch.zeros(1))

    def loss(self, outputs: Boundary, target: Tensor) -> Tensor:
        return outputs[0].sum()

    def evaluate(self, forward: Callable[[Boundary], Boundary]) -> float:
        return -forward((torch.ones(1),))[0].item()

    def resolution(self) -> float:
        return 1e-9


def regression_job(alpha: float, tau: int, steps: int) -> Job:
    """Full-batch gradient descent on `Diabetes`, with gradients at the weights of tau ago."""
    features = Diabetes().x.shape[1]
    return _job(partial(Linear, features), Diabetes, fixed_delay(tau), alpha, steps)


def discrepancy_job(model: DelayedQuadratic, alpha: float, steps: int, **settings: Any) -> Job:
    """The recursion of `model` from w = 1. `settings` are fields of the job.

    Raises:
        ValueError: tau_bkwd is not 0; the backward weights of a pipeline are the live ones.
    """
    if model.tau_bkwd:
        raise ValueError(f"tau_bkwd = {model.tau_bkwd}: backward weights are live; give 0")
    unit = partial(TwiceUsed, model.curvature, model.discrepancy)
    method = fixed_delay(model.tau_fwd, corrected=model.decay is not None)
    if model.decay is not None:
        settings.setdefault("decay", model.decay)
    return _job(unit, Value, method, alpha, steps, **settings)


def _job(
    unit: Callable[[], Unit],
    task: Callable[[], Task],
    method: Method,
    alpha: float,
    steps: int,
    **settings: Any,
) -> Job:
    """One stage, one micro-batch, gradient descent with step size alpha."""
    return Job(
        network=Network("theory", (unit,)),
        task=task,
        method=method,
        stages=1,
        microbatches=1,
        steps=steps,
        optimizer=partial(torch.optim.SGD, lr=alpha),
        divergence_loss=DIVERGED,
        dtype=torch.float64,
        **settings,
    )


def trial(job: Job, alpha: float) -> Trial:
    """Run the job on the reference engine."""
    outcome = run_reference(job)
    diverged = outcome.status == "diverged" or grows(outcome.losses)
    return Trial(alpha, outcome.steps, outcome.losses[-1], diverged)


def grows(losses: Sequence[float]) -> bool:
    """Whether the largest loss of the last quarter is above that of the second quarter.

    Rounding noise around a minimum is no growth.
    """
    quarter = len(losses) // 4
    return max(losses[-quarter:]) > max(losses[quarter : 2 * quarter]) * (1 + 1e-9)


def bisection(
    run: Callable[[float], Trial], low: float, high: float, tolerance: float
) -> Iterator[Trial]:
    """Runs that close in on the largest stable alpha, until `high / low` is 1 + `tolerance`.

    `low` must be stable and `high` must not; the last stable and the last diverged of the runs
    are the bracket.
    """
    while high > low * (1 + tolerance):
        found = run(math.sqrt(low * high))
        low, high = (low, found.alpha) if found.diverged else (found.alpha, high)
        yield found
