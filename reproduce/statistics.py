"""Means over seeds with bootstrap intervals, and slopes of power laws; apart from tables and plots.

B. Efron, "Bootstrap methods: another look at the jackknife", 1979. With the few seeds of a small
grid such an interval is narrow by nature: it says how far these runs lie apart, no more, which is
why the number of runs stands beside it everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

CONFIDENCE = 0.95
RESAMPLES = 9999


@dataclass(frozen=True)
class Interval:
    """A mean of n values with its percentile-bootstrap interval; equal ends where n = 1."""

    mean: float
    low: float
    high: float
    n: int

    def text(self, digits: int = 2) -> str:
        """`94.72 [94.17, 95.28]`, or the mean alone where there is but one value."""
        mean = f"{self.mean:.{digits}f}"
        ends = f"[{self.low:.{digits}f}, {self.high:.{digits}f}]"
        return f"{mean} {ends}" if self.n > 1 else mean


def mean_interval(values: Sequence[float]) -> Interval:
    """The mean of the values over seeds; always the same for the same values.

    Raises:
        ValueError: no value.
    """
    found = np.asarray(values, dtype=float)
    if not found.size:
        raise ValueError("no values: a mean needs at least one")
    mean = float(found.mean())
    if np.ptp(found) == 0.0:
        return Interval(mean, mean, mean, found.size)
    ends = stats.bootstrap(
        (found,),
        np.mean,
        confidence_level=CONFIDENCE,
        n_resamples=RESAMPLES,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return Interval(mean, float(ends.low), float(ends.high), found.size)


@dataclass(frozen=True)
class PowerLaw:
    """y = scale * x^exponent, fitted to logarithms; the ends bound the exponent."""

    exponent: float
    low: float
    high: float
    scale: float
    n: int


def power_law(x: Sequence[float], y: Sequence[float]) -> PowerLaw:
    """Least squares on (log x, log y), with Student's interval of the slope (n >= 3).

    Raises:
        ValueError: fewer than three points, or one that is not positive.
    """
    log_x, log_y = np.log(np.asarray(x, dtype=float)), np.log(np.asarray(y, dtype=float))
    if len(log_x) < 3 or not np.isfinite([log_x, log_y]).all():
        raise ValueError("a power law needs three points or more, all of them positive")
    fit = stats.linregress(log_x, log_y)
    reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(log_x) - 2) * fit.stderr)
    slope = float(fit.slope)
    return PowerLaw(slope, slope - reach, slope + reach, float(np.exp(fit.intercept)), len(log_x))
