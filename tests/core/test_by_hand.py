"""Both engines against a third implementation: a chain of numbers, in plain Python.

y = w_P ... w_2 w_1 x with loss (y - target)^2 / 2, every stage one number. `by_hand` walks the
ticks of the paper with nothing but floats: dx = u g and dw = x g, where u is the weight of section
2 of the design: the stashed one, the live one, or the live one less tau times delta. No torch, no
autograd, no code of the project.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from core_cases import exponential, make_job, network
from torch import Tensor, nn

from data.task import Microbatch, Task
from models.unit import Boundary, Unit
from reproduce.engine import run_pipeline
from reproduce.reference import run_reference

LR, MOMENTUM, RATE_DECAY = 0.08, 0.5, 0.9
K, D, W, STEPS = 7, 0.3, 3, 16
METHODS = ["gpipe", "pipedream", "async", "t1", "t1+t2", "t1+t2+t3"]


def start(stage: int) -> float:
    return 0.8 + 0.05 * stage


def sample(m: int) -> tuple[float, float]:
    """x and target of micro-batch m."""
    return 1.0 + 0.3 * math.sin(3.7 * m), 0.5 + 0.5 * math.cos(1.3 * m)


class Factor(Unit):
    """``(x,) -> (w x,)``"""

    def __init__(self, stage: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([start(stage)], dtype=torch.float64))

    def forward(self, x: Tensor) -> Boundary:
        return (self.w * x,)


class Samples(Task):
    """The task of `sample`."""

    name, metric = "samples", "accuracy"

    def microbatch(self, m: int) -> Microbatch:
        x, target = (torch.tensor([value], dtype=torch.float64) for value in sample(m))
        return Microbatch((x,), target)

    def loss(self, outputs: Boundary, target: Tensor) -> Tensor:
        return 0.5 * (outputs[0] - target).square().sum()

    def evaluate(self, forward: Callable[[Boundary], Boundary]) -> float:
        return 0.0

    def resolution(self) -> float:
        return 1.0


def by_hand(method: str, schedule: str, stages: int, n: int) -> tuple[list[float], list[float]]:
    """(final weights, losses) of SGD with momentum and an exponential scheduler."""
    everyone = range(1, stages + 1)
    w = {i: start(i) for i in everyone}
    velocity = dict.fromkeys(everyone, 0.0)
    delta = dict.fromkeys(everyone, 0.0)
    updates = dict.fromkeys(everyone, 0)
    sums = dict.fromkeys(everyone, 0.0)
    losses: list[float] = []
    tau = {i: (2 * (stages - i) + 1 if schedule == "ticks" else stages - i) / n for i in everyone}
    synchronous_steps = {"gpipe": STEPS, "t1+t2+t3": W}.get(method, 0)
    kept: dict[tuple[int, int], tuple[float, float]] = {}  # (stage, m) -> x, w of its forward
    loss_of: dict[int, float] = {}

    def forward(i: int, m: int, x: float) -> float:
        kept[i, m] = x, w[i]
        return w[i] * x

    def backward(i: int, m: int, g: float, asynchronous: bool) -> float:
        x, old = kept.pop((i, m))
        if method == "pipedream":
            u = old
        elif "t2" in method:
            u = w[i] - tau[i] * delta[i]
        else:
            u = w[i]
        sums[i] += x * g
        if (m + 1) % n == 0:
            k = updates[i] - synchronous_steps
            rate = LR * RATE_DECAY ** updates[i]
            if "t1" in method and asynchronous:
                rate /= max(tau[i], 1.0) ** (1.0 - min(k / K, 1.0))
            velocity[i] = MOMENTUM * velocity[i] + sums[i]
            before, w[i] = w[i], w[i] - rate * velocity[i]
            if asynchronous and "t2" in method and tau[i] > 0:
                gamma = D ** (1.0 / tau[i])
                delta[i] = gamma * delta[i] + (1.0 - gamma) * (w[i] - before)
            sums[i], updates[i] = 0.0, updates[i] + 1
        return u * g

    for t in range(synchronous_steps):
        for m in range(t * n, (t + 1) * n):
            x, target = sample(m)
            for i in everyone:
                x = forward(i, m, x)
            loss_of[m] = (x - target) ** 2 / 2
            kept[0, m] = (x - target) / n, 0.0
        for m in range(t * n, (t + 1) * n):
            g, _ = kept.pop((0, m))
            for i in reversed(everyone):
                g = backward(i, m, g, asynchronous=False)

    first, total = synchronous_steps * n, (STEPS - synchronous_steps) * n
    going_down: dict[tuple[int, int], float] = {}
    going_up: dict[tuple[int, int], float] = {}
    pace = 1 if schedule == "ticks" else 2
    for tick in range(pace * total + 2 * stages):
        for i in everyone:
            m, odd = divmod(tick - (i - 1), pace)
            if not odd and 0 <= m < total:
                m += first
                x, target = sample(m)
                y = forward(i, m, x if i == 1 else going_down.pop((i, m)))
                going_down[i + 1, m] = y
                if i == stages:
                    loss_of[m] = (y - target) ** 2 / 2
                    going_up[i, m] = (y - target) / n
            m, odd = divmod(tick - (2 * stages - i), pace)
            if not odd and 0 <= m < total:
                m += first
                going_up[i - 1, m] = backward(i, m, going_up.pop((i, m)), asynchronous=True)
    for t in range(STEPS):
        losses.append(sum(loss_of[m] for m in range(t * n, (t + 1) * n)) / n)
    return [w[i] for i in everyone], losses


@pytest.mark.parametrize("schedule", ["ticks", "1f1b"])
@pytest.mark.parametrize(("stages", "n"), [(1, 1), (2, 1), (4, 1), (3, 2), (5, 4)])
@pytest.mark.parametrize("method", METHODS)
def test_engines_do_what_the_definitions_say(
    method: str, stages: int, n: int, schedule: str
) -> None:
    job = make_job(
        network(*[partial(Factor, i) for i in range(1, stages + 1)]),
        Samples,
        method,
        stages=stages,
        microbatches=n,
        steps=STEPS,
        annealing_steps=K,
        decay=D,
        sync_steps=W,
        schedule=schedule,
        optimizer=partial(torch.optim.SGD, lr=LR, momentum=MOMENTUM),
        scheduler=exponential,
        dtype=torch.float64,
        divergence_loss=float("inf"),
    )
    weights, losses = by_hand(method, schedule, stages, n)
    assert weights != [start(i) for i in range(1, stages + 1)]
    outcomes = [run_reference(job)]
    if (stages, n) in ((4, 1), (5, 4)) and schedule == "ticks":
        outcomes.append(run_pipeline(job, 2))
    for outcome in outcomes:
        assert outcome.losses == pytest.approx(losses, rel=1e-9)
        assert [v.item() for v in outcome.weights] == pytest.approx(weights, rel=1e-9)
