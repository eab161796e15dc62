"""Hogwild!: random delays, forward and backward on the same stale weights.

The delay of a stage at a step is an exponential variable whose scale is the stage's mean pipeline
delay, truncated at `TRUNCATION` times that scale and rounded to whole updates. It is a pure
function of (seed, stage, step). T1 uses the expected delay of that distribution.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from reproduce.stage_context import StageContext

TRUNCATION = 3.0
"""Largest delay over the mean pipeline delay (assumed)"""


class RandomDelays:
    """Truncated exponential delays of one stage, in whole updates, around its context's tau_fwd."""

    def __init__(self, context: StageContext) -> None:
        self.scale = float(context.tau_fwd)
        self.bound = delay_bound(context.tau_fwd)
        self.mean = self.expected(context.tau_fwd)
        self._key = (context.seed, context.stage)

    def delay(self, step: int) -> int:
        uniform = np.random.default_rng([*self._key, step]).random()
        mass = 1.0 - math.exp(-TRUNCATION)
        return round(-self.scale * math.log(1.0 - uniform * mass))

    @staticmethod
    def expected(tau: Fraction) -> Fraction:
        """Mean of the rounded delay: the sum over d >= 1 of Pr[delay >= d]."""
        scale, mass = float(tau), 1.0 - math.exp(-TRUNCATION)
        tail = (
            (math.exp(-(d - 0.5) / scale) - math.exp(-TRUNCATION)) / mass
            for d in range(1, delay_bound(tau) + 1)
        )
        return Fraction(sum(tail))


def delay_bound(tau: Fraction) -> int:
    """The largest delay that can be drawn for a mean pipeline delay `tau`."""
    return round(TRUNCATION * float(tau))
