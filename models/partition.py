"""Which units make up which stage: contiguous runs, as even as they can be."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate, pairwise


def partition(costs: int | Sequence[float], stages: int) -> list[range]:
    """Unit indices of each of P = `stages` contiguous stages, none empty.

    `costs` is one number a unit (at least 0, in whatever measure), or the number of units where
    all cost the same. The costliest stage is as cheap as any partition can make it; among such
    partitions each cut in turn lies as near to its even share of the total as it can. For equal
    costs, stage sizes differ by at most one.

    Raises ValueError where P is below 1 or above the number of units, or a cost is negative or not
    finite.
    """
    costs = [1] * costs if isinstance(costs, int) else costs
    units = len(costs)
    if not 1 <= stages <= units:
        raise ValueError(
            f"{units} units cannot make {stages} stages: choose from 1 to {units} stages"
        )
    if any(not math.isfinite(cost) or cost < 0 for cost in costs):
        raise ValueError("unit costs must be finite and at least 0")
    prefix = [0, *accumulate(_integers(costs))]
    limit = _smallest_limit(prefix, stages)
    earliest = _earliest_cuts(prefix, stages, limit)
    cuts = [0]
    for stage in range(1, stages):
        low = max(cuts[-1] + 1, earliest[stage])
        high = min(_reach(prefix, cuts[-1], limit), units - (stages - stage))
        # Distance to the even share in cost, then in units (which decides where units cost 0).
        _, _, cut = min(
            (abs(stages * prefix[c] - stage * prefix[-1]), abs(stages * c - stage * units), c)
            for c in range(low, high + 1)
        )
        cuts.append(cut)
    return [range(a, b) for a, b in zip(cuts, [*cuts[1:], units], strict=True)]


def _integers(costs: Sequence[float]) -> list[int]:
    """The costs in units of their common denominator: floats are fractions, so this is exact."""
    fractions = [Fraction(cost) for cost in costs]
    denominator = math.lcm(*(f.denominator for f in fractions))
    return [int(f * denominator) for f in fractions]


def _reach(prefix: list[int], start: int, limit: int) -> int:
    """Where a stage that begins at unit `start` and costs at most `limit` ends at the latest."""
    return bisect_right(prefix, prefix[start] + limit) - 1


def _smallest_limit(prefix: list[int], stages: int) -> int:
    """The least cost of the costliest stage, by bisection over whole numbers."""
    units = len(prefix) - 1
    low = max(b - a for a, b in pairwise(prefix))
    high = prefix[-1]
    while low < high:
        limit, cut = (low + high) // 2, 0
        for _ in range(stages):
            cut = _reach(prefix, cut, limit)
        if cut == units:
            high = limit
        else:
            low = limit + 1
    return low


def _earliest_cuts(prefix: list[int], stages: int, limit: int) -> list[int]:
    """[s]: the first unit from which the stages after the first s can still hold all the rest."""
    cuts = [len(prefix) - 1]
    for _ in range(stages):
        cuts.append(bisect_left(prefix, prefix[cuts[-1]] - limit))
    return cuts[::-1]
