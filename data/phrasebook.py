"""The corpus of task `phrases` as tensors: sub-words of a vocabulary, padded to static shapes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from sentencepiece import SentencePieceProcessor
from torch import Tensor

from data.corpus import Pair, corpus
from data.subwords import BOS, EOS, PAD, subwords

MULTIPLE = 4
"""Padded lengths are rounded up to a multiple of this."""


class Encoded(NamedTuple):
    """Pairs as pieces, int64, padded: source [n, S], target_in and target_out [n, T].

    A source ends in EOS; target_in is BOS and the pieces, target_out the pieces and EOS.
    """

    source: Tensor
    target_in: Tensor
    target_out: Tensor


class Phrasebook(NamedTuple):
    """The corpus as one vocabulary and length limit see it."""

    processor: SentencePieceProcessor
    train: Encoded
    test: Encoded
    test_pairs: tuple[Pair, ...]


class Coded(NamedTuple):
    """A pair and its pieces, without special ones."""

    pair: Pair
    source: list[int]
    target: list[int]


def _code(processor: SentencePieceProcessor, pairs: Sequence[Pair]) -> list[Coded]:
    sources = processor.encode([pair.source for pair in pairs], num_threads=1)
    targets = processor.encode([pair.target for pair in pairs], num_threads=1)
    return list(map(Coded, pairs, sources, targets))


def _width(sides: Iterable[list[int]], max_length: int) -> int:
    """The static length of a side, for the training and the test part alike."""
    longest = 1 + max(map(len, sides))  # BOS or EOS comes on top
    return min(-(-longest // MULTIPLE) * MULTIPLE, max_length)


def _pad(rows: Iterable[list[int]], width: int) -> Tensor:
    return torch.tensor([row + [PAD] * (width - len(row)) for row in rows])


def _encode(coded: Sequence[Coded], max_source: int, max_target: int) -> Encoded:
    return Encoded(
        _pad(([*c.source, EOS] for c in coded), max_source),
        _pad(([BOS, *c.target] for c in coded), max_target),
        _pad(([*c.target, EOS] for c in coded), max_target),
    )


@lru_cache(maxsize=4)
def phrasebook(vocabulary: int, max_length: int, cache: Path) -> Phrasebook:
    """Both parts encoded with the sub-words of the training part; longer pairs are left out.

    Raises:
        ValueError: the vocabulary is impossible, or no phrase is short enough.
    """
    parts = corpus()
    processor = subwords([text for pair in parts.train for text in pair], vocabulary, cache)
    train, test = (
        [c for c in _code(processor, pairs) if max(len(c.source), len(c.target)) < max_length]
        for pairs in parts
    )
    if not train or not test:
        raise ValueError(f"max_length={max_length} leaves no phrases: use 32 pieces")
    max_source = _width((c.source for c in train + test), max_length)
    max_target = _width((c.target for c in train + test), max_length)
    return Phrasebook(
        processor,
        _encode(train, max_source, max_target),
        _encode(test, max_source, max_target),
        tuple(c.pair for c in test),
    )
