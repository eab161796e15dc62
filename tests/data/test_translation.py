"""Greedy decoding and BLEU."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F

from data.subwords import BOS, EOS, PAD, UNK
from data.task import Boundary
from data.translation import bleu_signature, corpus_bleu, greedy_decode, word_count

A, B = UNK + 1, UNK + 2
REFERENCES = ["one hundred and twenty-two", "Thursday, March 4, 2010", "3 days ago", "seven"]
HYPOTHESES = ["one hundred and twenty-one", "Thursday, March 14, 2010", "", "seven"]


def test_decoding_stops_each_sentence_at_its_end() -> None:
    calls = []

    def forward(inputs: Boundary) -> Boundary:
        """Source k asks for k pieces A, then the end; the rows that ended are not asked for."""
        source, target = inputs
        assert (target[:, 0] == BOS).all() and not torch.is_grad_enabled()
        calls.append(tuple(target.shape))
        piece = torch.where(target.shape[1] > source, EOS, A)
        return (F.one_hot(piece.expand_as(target), 8).float(),)

    decoded = greedy_decode(forward, torch.tensor([[2], [0], [9]]), max_target=4)
    assert decoded == [[A, A], [], [A, A, A, A]]
    assert calls == [(3, 1), (2, 2), (2, 3), (1, 4)]


def test_padding_is_never_chosen() -> None:
    def forward(inputs: Boundary) -> Boundary:
        logits = torch.tensor([9.0, 8.0, 0.0, 0.0, 1.0, 2.0])  # PAD and BOS first, then B
        return (logits.expand(*inputs[1].shape, 6),)

    assert PAD not in (A, B)
    assert greedy_decode(forward, torch.ones(2, 1), max_target=3) == [[B] * 3] * 2


def test_nan_ends_at_once() -> None:
    def forward(inputs: Boundary) -> Boundary:
        return (torch.full((*inputs[1].shape, 8), torch.nan),)

    assert greedy_decode(forward, torch.ones(2, 1), max_target=5) == [[], []]


def test_bleu_bounds() -> None:
    assert corpus_bleu(REFERENCES, REFERENCES) == pytest.approx(100)
    assert corpus_bleu([""] * 4, REFERENCES) == 0
    assert 0 < corpus_bleu(HYPOTHESES, REFERENCES) < 100


def test_bleu_ignores_the_order_of_pairs() -> None:
    pairs = list(zip(HYPOTHESES, REFERENCES, strict=True))
    random.Random(0).shuffle(pairs)
    assert corpus_bleu(*zip(*pairs, strict=True)) == corpus_bleu(HYPOTHESES, REFERENCES)


@pytest.mark.parametrize("hypotheses", [HYPOTHESES[:3], [*HYPOTHESES, "one"], []])
def test_unequal_counts_are_refused(hypotheses: list[str]) -> None:
    with pytest.raises(ValueError, match=f"{len(hypotheses)} hypotheses for 4 references"):
        corpus_bleu(hypotheses, REFERENCES)
    with pytest.raises(ValueError, match="0 hypotheses for 0 references"):
        corpus_bleu([], [])


def test_words_and_signature() -> None:
    assert word_count(["3 days ago", "seven"]) == 4
    assert bleu_signature().startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.")
