from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.partition import partition

costs_and_stages = st.lists(
    st.one_of(st.integers(0, 9), st.floats(0, 1e6, allow_nan=False)), min_size=1, max_size=9
).flatmap(lambda costs: st.tuples(st.just(costs), st.integers(1, len(costs))))


def costliest(costs, stages):
    return max(sum(costs[u] for u in stage) for stage in stages)


@given(costs_and_stages)
def test_no_partition_has_a_cheaper_costliest_stage(case):
    costs, count = case
    stages = partition(costs, count)
    assert len(stages) == count
    assert all(len(stage) > 0 for stage in stages)
    assert [u for stage in stages for u in stage] == list(range(len(costs)))
    every = (
        [range(a, b) for a, b in pairwise((0, *cuts, len(costs)))]
        for cuts in combinations(range(1, len(costs)), count - 1)
    )
    # The sums here are rounded, the partition's are exact.
    best = min(costliest(costs, other) for other in every)
    assert costliest(costs, stages) == pytest.approx(best, rel=1e-12)


@given(st.integers(1, 400), st.data(), st.sampled_from([0.0, 0.1, 1, 3.7]))
def test_equal_costs_make_sizes_that_differ_by_at_most_one(units, data, cost):
    count = data.draw(st.integers(1, units))
    stages = partition(units, count)
    assert {len(stage) for stage in stages} <= {units // count, -(-units // count)}
    assert all(abs(stage.start - s * units / count) <= 0.5 for s, stage in enumerate(stages))
    assert stages == partition([cost] * units, count)


def test_cuts_lie_near_their_even_share():
    """Here any second cut will do; the one at two thirds of the total of 12 is taken."""
    assert partition([6, 1, 1, 1, 1, 1, 1], 3) == [range(1), range(1, 3), range(3, 7)]


@pytest.mark.parametrize("stages", [0, -1, 108])
def test_impossible_counts_name_both_numbers(stages):
    message = f"107 units cannot make {stages} stages: choose from 1 to 107 stages"
    with pytest.raises(ValueError, match=message):
        partition(107, stages)


@pytest.mark.parametrize("cost", [-1.0, float("nan"), float("inf")])
def test_costs_that_are_none_are_refused(cost):
    with pytest.raises(ValueError, match="finite and at least 0"):
        partition([1.0, cost], 1)
