"""The optimizer by name, and its base learning rate."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR

from reproduce.errors import BadInput
from reproduce.optimization import LearningRateFactor, optimizer, scheduler, try_step
from reproduce.settings import Settings


def settings(**changes: object) -> Settings:
    base = {"stages": 2, "microbatches": 1, "batch_size": 4, "steps": 10, "lr": 0.1}
    return Settings.model_validate(base | changes)


@pytest.mark.parametrize("name", ["sgd", "SGD", "Adam", "adamw", "RMSprop", "adafactor"])
def test_any_optimizer_by_name(name: str) -> None:
    make = pickle.loads(pickle.dumps(optimizer(settings(optimizer=name))))
    try_step(make)
    assert type(make([torch.zeros(2, requires_grad=True)])).__name__.lower() == name.lower()


def test_options_reach_it() -> None:
    made = optimizer(settings(optimizer="adamw", betas=[0.8, 0.9], weight_decay=0.3))
    group = made([torch.zeros(2, requires_grad=True)]).param_groups[0]
    assert (group["lr"], group["betas"], group["weight_decay"]) == (0.1, (0.8, 0.9), 0.3)


def test_unset_options_are_torchs_own() -> None:
    group = optimizer(settings(optimizer="adamw"))([torch.zeros(2)]).param_groups[0]
    assert group["weight_decay"] == torch.optim.AdamW([torch.zeros(2)]).defaults["weight_decay"]


@pytest.mark.parametrize("name", ["lbfgs", "sparseadam"])
def test_optimizers_that_cannot_do_a_plain_step(name: str) -> None:
    with pytest.raises(BadInput, match="cannot train this"):
        try_step(optimizer(settings(optimizer=name)))


def rates(steps: int, **changes: object) -> list[float]:
    """The learning rate of each step as torch runs it."""
    chosen = settings(steps=steps, **changes)
    stepper = optimizer(chosen)([torch.zeros(2, requires_grad=True)])
    make = scheduler(chosen)
    assert make is not None
    follower = pickle.loads(pickle.dumps(make))(stepper)
    found = []
    for _ in range(steps):
        found.append(stepper.param_groups[0]["lr"])
        stepper.step()
        follower.step()
    return found


def test_warmup_is_linear_and_ends_at_the_base() -> None:
    assert rates(6, lr_warmup=4) == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1, 0.1])


def test_cosine_is_torchs() -> None:
    stepper = torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.1)
    peer, expected = CosineAnnealingLR(stepper, T_max=8), []
    for _ in range(8):
        expected.append(stepper.param_groups[0]["lr"])
        stepper.step()
        peer.step()
    assert rates(8, lr_schedule="cosine") == pytest.approx(expected)


def test_cosine_after_warmup_starts_at_the_base_and_ends_at_zero() -> None:
    factor = LearningRateFactor("cosine", warmup=4, steps=10)
    assert (factor(3), factor(4), factor(10)) == pytest.approx((1.0, 1.0, 0.0))


def test_inverse_sqrt_is_continuous_and_falls_by_half_over_four_times_the_steps() -> None:
    factor = LearningRateFactor("inverse_sqrt", warmup=100, steps=1000)
    assert factor(99) == pytest.approx(1.0)
    assert factor(100) == pytest.approx(1.0, rel=0.01)
    assert factor(399) == pytest.approx(0.5)


def test_a_constant_rate_needs_no_scheduler() -> None:
    assert scheduler(settings()) is None
