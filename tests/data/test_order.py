"""The data order: epochs are permutations, and micro-batches cut one stream that ignores N."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.order import Order


@st.composite
def orders(draw: st.DrawFn) -> Order:
    microbatches = draw(st.integers(1, 5))
    batch_size = microbatches * draw(st.integers(1, 6))
    size = draw(st.integers(batch_size, 60))
    return Order(draw(st.integers(0, 2**40)), size, batch_size, microbatches)


def stream(order: Order, samples: int) -> np.ndarray:
    count = -(-samples // order.microbatch_size)
    return np.concatenate([order.samples(m) for m in range(count)])[:samples]


@settings(max_examples=50, deadline=None)
@given(orders())
def test_every_epoch_holds_every_sample_once(order: Order) -> None:
    epochs = stream(order, 3 * order.size).reshape(3, order.size)
    assert (np.sort(epochs, axis=1) == np.arange(order.size)).all()


@settings(max_examples=50, deadline=None)
@given(orders(), st.integers(0, 40))
def test_microbatches_of_a_step_are_the_mini_batch(order: Order, step: int) -> None:
    n = order.microbatches
    whole = Order(order.seed, order.size, order.batch_size, 1)
    parts = [order.samples(m) for m in range(step * n, (step + 1) * n)]
    assert {len(part) for part in parts} == {Fraction(order.batch_size, n)}
    assert np.array_equal(np.concatenate(parts), whole.samples(step))


def test_pure_in_seed_and_microbatch() -> None:
    first, second = (Order(3, 50, 12, 4) for _ in range(2))
    asked = [40, 0, 17, 40, 3]
    backwards = {m: second.samples(m) for m in reversed(asked)}
    assert all(np.array_equal(first.samples(m), backwards[m]) for m in asked)


def test_seeds_and_epochs_differ() -> None:
    epochs = stream(Order(0, 100, 10, 1), 300).reshape(3, 100)
    other = stream(Order(1, 100, 10, 1), 100)
    assert all((a != b).any() for a, b in pairwise([other, *epochs]))


def test_a_mini_batch_crosses_the_end_of_an_epoch() -> None:
    order = Order(0, 10, 8, 2)
    assert [[epoch for epoch, _ in order.pieces(m)] for m in range(5)] == [
        [0],
        [0],
        [0, 1],
        [1],
        [1],
    ]


@pytest.mark.parametrize(
    ("seed", "batch_size", "microbatches", "message"),
    [
        (0, 10, 4, "batch_size=10 is not a multiple of microbatches=4: use batch_size=12"),
        (0, 51, 1, "batch_size=51 does not fit .* 1 to 50"),
        (0, 0, 1, "batch_size=0 does not fit"),
        (0, 8, 0, "microbatches=0"),
        (-1, 8, 1, "seed=-1 is negative"),
    ],
)
def test_bad_arguments(seed: int, batch_size: int, microbatches: int, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        Order(seed, 50, batch_size, microbatches)
    assert "\n" not in str(error.value)
