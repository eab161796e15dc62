"""The paper's lemma, on the pipeline engine itself: delayed gradient descent on a quadratic.

w_{t+1} = w_t - alpha lambda w_{t - tau} is stable for alpha < (2 / lambda) sin(pi / (4 tau + 2))
and not above. A network whose one curved weight sits in a stage with tau = 1, 3 or 5 must therefore
shrink at 0.99 of that step size and grow at 1.01 of it, over a run that is long after the filling
of the pipeline. The gradient is taken at the forward weights, since w reaches the square as an
activation. At tau = 0 (GPipe) the lemma is the classical 2 / lambda.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from core_cases import make_job, network
from torch import Tensor, nn

from data.task import Microbatch, Task
from models.unit import Boundary, Unit
from reproduce.engine import run_pipeline
from reproduce.reference import run_reference

CURVATURE = 3.0


class Bowl(Unit):
    """``(total, one, zero) -> (total + curvature / 2 (w one)^2, one, zero)``"""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(1))

    def forward(self, total: Tensor, one: Tensor, zero: Tensor) -> Boundary:
        y = self.w * one
        return total + 0.5 * CURVATURE * y.square(), one, zero


class Flat(Unit):
    """``(total, one, zero) -> (total + w zero, one, zero)``"""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(1))

    def forward(self, total: Tensor, one: Tensor, zero: Tensor) -> Boundary:
        return total + self.w * zero, one, zero


class Total(Task):
    """The loss is the sum of what the stages put in."""

    name, metric = "total", "accuracy"

    def microbatch(self, m: int) -> Microbatch:
        return Microbatch((torch.zeros(1), torch.ones(1), torch.zeros(1)), torch.zeros(1))

    def loss(self, outputs: Boundary, target: Tensor) -> Tensor:
        return outputs[0].sum()

    def evaluate(self, forward: Callable[[Boundary], Boundary]) -> float:
        return 0.0

    def resolution(self) -> float:
        return 1.0


def critical(tau: int) -> float:
    return 2 / CURVATURE * math.sin(math.pi / (4 * tau + 2))


def growth(method: str, tau: int, alpha: float, engine: str = "pipeline") -> float:
    """Largest |w| late in the run over the largest early, both long after the start.

    With N = 1, stage P - (tau - 1) / 2 of P = 3 has a delay of tau updates.
    """
    units: list[type[Unit]] = [Flat] * 3
    units[2 - tau // 2] = Bowl
    job = make_job(
        network(*units),
        Total,
        method,
        stages=3,
        microbatches=1,
        steps=1500,
        annealing_steps=0,
        optimizer=partial(torch.optim.SGD, lr=alpha),
        dtype=torch.float64,
        divergence_loss=float("inf"),
    )
    losses = (run_pipeline(job, 1) if engine == "pipeline" else run_reference(job)).losses
    sizes = [math.sqrt(2 * loss / CURVATURE) for loss in losses]
    return max(sizes[-200:]) / max(sizes[200:400])


@pytest.mark.parametrize("tau", [1, 3, 5])
@pytest.mark.parametrize("method", ["async", "pipedream"])
def test_stable_below_and_unstable_above(method: str, tau: int) -> None:
    assert growth(method, tau, 0.99 * critical(tau)) < 0.9
    assert growth(method, tau, 1.01 * critical(tau)) > 1.1


def test_a_delay_is_what_makes_the_difference() -> None:
    """GPipe at 0.99 of 2 / lambda, where any delay would blow up: shrinks; above: grows."""
    assert growth("gpipe", 5, 0.99 * 2 / CURVATURE, "reference") < 1e-5
    assert growth("gpipe", 5, 1.01 * 2 / CURVATURE, "reference") > 1e5


@pytest.mark.parametrize("tau", [1, 3, 5])
def test_the_lemma_by_itself(tau: int) -> None:
    """The recursion in plain Python, so that the two tests above are about the engine."""
    for share, stable in ((0.99, True), (1.01, False)):
        w = [1.0] * (tau + 1)
        for _ in range(1500):
            w.append(w[-1] - share * critical(tau) * CURVATURE * w[-1 - tau])
        late, early = (max(map(abs, part)) for part in (w[-200:], w[200:400]))
        assert (late < 0.9 * early) if stable else (late > 1.1 * early)
