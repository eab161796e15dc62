"""The order of the training samples, a pure function of (seed, step).

    sample stream   = permutation of epoch 0, permutation of epoch 1, ...   (keyed by seed, epoch)
    mini-batch t    = stream[t B : (t+1) B]
    micro-batch m   = slice j = m mod N of mini-batch t = m // N, that is stream[m b : (m+1) b],
                      b = B / N

Nothing is dropped at the end of an epoch: a mini-batch may begin in one and end in the next. The
stream does not depend on N, so neither does what a step trains on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

ORDER, AUGMENTATION = range(2)
"""What a keyed generator is for; two purposes never share a stream."""


def generator(seed: int, purpose: int, epoch: int) -> np.random.Generator:
    """A generator that depends on its arguments alone (NumPy's `SeedSequence` mixes them)."""
    return np.random.default_rng([seed, purpose, epoch])


@lru_cache(maxsize=4)
def permutation(seed: int, size: int, epoch: int) -> NDArray[np.int64]:
    """The order of samples 0..size-1 in `epoch`, int64 [size]; shared, so read-only."""
    order = generator(seed, ORDER, epoch).permutation(size)
    order.flags.writeable = False
    return order


@dataclass(frozen=True)
class Order:
    """Which of `size` training samples each micro-batch holds.

    Raises:
        ValueError: B is not a multiple of N, or does not fit the training part.
    """

    seed: int
    size: int
    batch_size: int
    """B"""
    microbatches: int
    """N"""

    def __post_init__(self) -> None:
        b, n = self.batch_size, self.microbatches
        if self.seed < 0:
            raise ValueError(f"seed={self.seed} is negative: use 0 or more")
        if n < 1:
            raise ValueError(f"microbatches={n} is less than 1: a step has at least 1 micro-batch")
        if not 1 <= b <= self.size:
            raise ValueError(
                f"batch_size={b} does not fit the training part: use 1 to {self.size} samples"
            )
        if b % n:
            raise ValueError(
                f"batch_size={b} is not a multiple of microbatches={n}: "
                f"use batch_size={-(-b // n) * n} or another multiple"
            )

    @property
    def microbatch_size(self) -> int:
        """b = B / N, samples"""
        return self.batch_size // self.microbatches

    def pieces(self, m: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Micro-batch m as (epoch, sample numbers): one piece, or two across an epoch's end."""
        start = m * self.microbatch_size
        stop = start + self.microbatch_size
        while start < stop:
            epoch, first = divmod(start, self.size)
            piece = permutation(self.seed, self.size, epoch)[first : first + stop - start]
            yield epoch, piece
            start += len(piece)

    def samples(self, m: int) -> NDArray[np.int64]:
        """The sample numbers of micro-batch m, int64 [b]."""
        return np.concatenate([piece for _, piece in self.pieces(m)])
