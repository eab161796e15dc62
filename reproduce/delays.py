"""The delays of a stage as they really were: counted from the versions its passes used."""

from __future__ import annotations

from fractions import Fraction

from reproduce.job import StageDelay


class DelayMeter:
    """Ages of the weights of one stage, in updates, over whole mini-batches in steady state.

    Micro-batches reach it in order. The first `skip` of them are left out: they met a pipeline that
    was still filling.
    """

    def __init__(self, stage: int, microbatches: int, skip: int) -> None:
        self.stage = stage
        self.microbatches = microbatches
        self.skip = skip
        self._window = [0, 0]
        self._in_window = 0
        self._sums = [0, 0]
        self._count = 0

    def count(self, age_fwd: int, age_bkwd: int) -> None:
        """One backward pass, whose forward / backward weights were so many updates old."""
        if self.skip:
            self.skip -= 1
            return
        self._window = [self._window[0] + age_fwd, self._window[1] + age_bkwd]
        self._in_window += 1
        if self._in_window == self.microbatches:
            self._sums = [a + b for a, b in zip(self._sums, self._window, strict=True)]
            self._count += self._in_window
            self._window, self._in_window = [0, 0], 0

    def result(self) -> StageDelay:
        if not self._count:
            return StageDelay(self.stage, None, None)
        return StageDelay(self.stage, *(Fraction(s, self._count) for s in self._sums))
