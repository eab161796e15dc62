"""How well T2 knows the forward weights, measured where both are at hand.

    ratio    = |u - w_fwd| / |w - w_fwd|          1: no better than the newest weights; 0: exact
    distance = |w - w_fwd| / |w_fwd|              how far the weights moved in the delay

w are the newest weights, w_fwd those that the forward pass read, u those that the backward pass
reads; norms are over all parameters of the stage, in double precision.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from reproduce.job import StageApproximation


class ApproximationMeter:
    """Means of both over the backward passes of one stage that it is told of."""

    def __init__(self, stage: int) -> None:
        self.stage = stage
        self._ratios = self._distances = 0.0
        self._count = 0

    def count(
        self, newest: Sequence[Tensor], forward: Sequence[Tensor], backward: Sequence[Tensor]
    ) -> None:
        """One backward pass with its w, w_fwd and u. Left out where the weights did not move, are
        all zero, or are no longer finite."""
        moved, size = _distance(newest, forward), _norm(forward)
        if not moved or not size or not math.isfinite(moved + size):
            return
        self._ratios += _distance(backward, forward) / moved
        self._distances += moved / size
        self._count += 1

    def result(self) -> StageApproximation:
        n = self._count
        ratio, distance = (self._ratios / n, self._distances / n) if n else (None, None)
        return StageApproximation(self.stage, ratio, distance, n)


def _norm(tensors: Sequence[Tensor]) -> float:
    norm: float = torch.cat([t.detach().double().flatten() for t in tensors]).norm().item()
    return norm


def _distance(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    return _norm([x.detach().double() - y.detach().double() for x, y in zip(a, b, strict=True)])
