"""T2, discrepancy correction: the backward pass on an estimate of the forward pass's weights.

    u_i     = w_i - (tau_fwd,i - tau_bkwd,i) * delta_i
    delta_i <- gamma_i * delta_i + (1 - gamma_i) * (w_new - w_old)      after every update
    gamma_i = D^(1 / (tau_fwd,i - tau_bkwd,i))                          D one global number

A recomputation (PipeMare Recompute) reads w_i - (tau_fwd,i - tau_recomp,i) * delta_i, with the w
and delta of its own moment.

delta_i is a running mean of the stage's updates, so the gap times delta_i is about how far the
weights moved between the two passes. It starts at zero with the first asynchronous update
(assumed): before that the two passes read the same weights and there is nothing to correct.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from reproduce.stage_context import StageContext


class Discrepancy:
    """delta_i of one stage, one tensor a parameter."""

    def __init__(self, context: StageContext) -> None:
        self.gap = float(context.tau_fwd - context.tau_bkwd)
        self.recompute_gap = float(context.tau_fwd - (context.tau_recomp or 0))
        self.gamma = context.decay ** (1.0 / self.gap) if self.gap > 0 else 0.0
        self.delta = [torch.zeros_like(weight, requires_grad=False) for weight in context.weights]

    def observe(self, old: Sequence[Tensor], new: Sequence[Tensor]) -> None:
        for delta, before, after in zip(self.delta, old, new, strict=True):
            delta.mul_(self.gamma).add_(after - before, alpha=1.0 - self.gamma)

    def backward_weight(self, index: int, weight: Tensor) -> Tensor:
        return torch.sub(weight, self.delta[index], alpha=self.gap)

    def recompute_weight(self, index: int, weight: Tensor) -> Tensor:
        return torch.sub(weight, self.delta[index], alpha=self.recompute_gap)

    @property
    def buffers(self) -> list[Tensor]:
        return self.delta
