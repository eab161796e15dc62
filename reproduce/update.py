"""What happens to a stage's weights once the N gradients of a mini-batch are in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from reproduce.job import Job
from reproduce.methods import RecomputeCorrection
from reproduce.phases import recomputes_on_other_weights, stage_context


class StageUpdate:
    """The optimizer of one stage, and the pieces of the method that work on its updates.

    Every stage has an optimizer and a scheduler of its own, so any of torch.optim will do; T1 is
    a factor on the learning rate that lasts for the step only, which keeps schedulers that chain
    from one learning rate to the next unaware of it.
    """

    def __init__(self, job: Job, stage: int, weights: Sequence[nn.Parameter]) -> None:
        method = job.method
        context = stage_context(job, stage, weights)
        self.weights = list(weights)
        self.optimizer = job.optimizer(self.weights)
        self.scheduler = job.scheduler(self.optimizer) if job.scheduler else None
        self.learning_rate = method.learning_rate(context) if method.learning_rate else None
        self.correction = method.correction(context) if method.correction else None

    def apply(self, gradients: Sequence[Tensor | None], k: int | None) -> None:
        """One update. `k` counts asynchronous steps; None in a synchronous warm-up.

        `gradients` are sums over the micro-batches of losses already divided by N.
        """
        for weight, gradient in zip(self.weights, gradients, strict=True):
            weight.grad = gradient
        observed = self.correction is not None and k is not None
        old = [w.detach().clone() for w in self.weights] if observed else []
        factor = self.learning_rate.factor(k) if self.learning_rate and k is not None else 1.0
        groups = self.optimizer.param_groups
        rates = [group["lr"] for group in groups]
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate * factor
        self.optimizer.step()
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)
        if self.scheduler is not None:
            self.scheduler.step()
        if self.correction is not None and k is not None:
            with torch.no_grad():
                self.correction.observe(old, self.weights)

    def backward_weight(self, index: int, weight: Tensor) -> Tensor:
        """What a backward pass uses for parameter `index` where the method reads `weight`."""
        if self.correction is None:
            return weight
        return self.correction.backward_weight(index, weight)

    def recompute_weight(self, index: int, weight: Tensor) -> Tensor:
        """What a recomputation reads for parameter `index`, whose newest value is `weight`."""
        if self.correction is None:
            return weight
        correction = cast(RecomputeCorrection, self.correction)  # see check_recompute
        return correction.recompute_weight(index, weight)

    def optimizer_bytes(self) -> int:
        states = self.optimizer.state.values()
        return sum(v.nbytes for s in states for v in s.values() if isinstance(v, Tensor))

    def correction_bytes(self) -> int:
        return sum(b.nbytes for b in self.correction.buffers) if self.correction else 0


def check_recompute(job: Job) -> None:
    """That the job's schedule and its method's correction can do what `segment` asks for.

    Raises:
        ValueError: what is wrong, and the mend.
    """
    context = stage_context(job, 1, [nn.Parameter(torch.zeros(1))])
    if job.method.correction is None or not recomputes_on_other_weights(job):
        return
    probe = job.method.correction(context)
    if not isinstance(probe, RecomputeCorrection):
        raise ValueError(
            f"segment = {job.segment}: {type(probe).__name__}, the correction of method "
            f"{job.method.name!r}, has no recompute_weight(index, weight), the weights that a "
            "recomputation reads; give it one or choose segment = 0"
        )
