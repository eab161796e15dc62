"""The optimizer and its base learning rate, from a cell's settings."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from reproduce.errors import BadInput, choose
from reproduce.settings import Settings

OPTIONS = ("momentum", "betas", "weight_decay")

OPTIMIZERS: dict[str, type[Optimizer]] = {
    name.lower(): value
    for name, value in vars(torch.optim).items()
    if isinstance(value, type) and issubclass(value, Optimizer) and value is not Optimizer
}


def optimizer(settings: Settings) -> Callable[[Iterable[Tensor]], Optimizer]:
    """What makes the optimizer of a stage from its parameters; picklable.

    Raises BadInput for a name torch.optim does not have and for an option it does not take.
    """
    if settings.optimizer not in OPTIMIZERS:
        wrong = settings.optimizer
        raise BadInput(f"optimizer = {wrong!r}: not in torch.optim; {choose(wrong, OPTIMIZERS)}")
    kind = OPTIMIZERS[settings.optimizer]
    options: dict[str, Any] = {"lr": settings.lr}
    for option in OPTIONS:
        value = getattr(settings, option)
        if value is not None:
            options[option] = tuple(value) if isinstance(value, list) else value
    takes = inspect.signature(kind).parameters
    for option in options.keys() - takes.keys():
        raise BadInput(
            f"{option} = {options[option]}: {kind.__name__} has none; leave it out of the table, "
            f"or take it back with --set {option}="
        )
    return partial(kind, **options)


def try_step(make: Callable[[Iterable[Tensor]], Optimizer]) -> None:
    """One step on a weight matrix, a kernel and a bias.

    Raises BadInput for a value that torch refuses and for an optimizer that cannot do a plain step
    on any weight (it wants a closure, sparse gradients, matrices only, ...).
    """
    weights = [torch.zeros(shape, requires_grad=True) for shape in ((2, 2), (2, 2, 3, 3), (2,))]
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
    try:
        make(weights).step()
    except (TypeError, ValueError, RuntimeError) as error:
        name = getattr(make, "func", make).__name__
        raise BadInput(f"optimizer: {name} cannot train this: {error}; choose another") from error


@dataclass(frozen=True)
class LearningRateFactor:
    """lr / base lr of step k: a linear rise over `warmup` steps, then constant, cosine to 0 at
    `steps`, or sqrt(warmup / k)."""

    kind: str
    warmup: int
    steps: int

    def __call__(self, k: int) -> float:
        if k < self.warmup:
            return (k + 1) / self.warmup
        if self.kind == "cosine":
            done = (k - self.warmup) / max(1, self.steps - self.warmup)
            return 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
        if self.kind == "inverse_sqrt":
            return math.sqrt(max(1, self.warmup) / (k + 1))
        return 1.0


def scheduler(settings: Settings) -> Callable[[Optimizer], LRScheduler] | None:
    """What makes the scheduler of an optimizer; picklable. None: the learning rate is constant."""
    if settings.lr_schedule == "constant" and settings.lr_warmup == 0:
        return None
    factor = LearningRateFactor(settings.lr_schedule, settings.lr_warmup, settings.steps)
    return partial(LambdaLR, lr_lambda=factor)
