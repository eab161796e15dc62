"""Greedy decoding, beam search and BLEU."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from data.subwords import BOS, EOS, PAD, UNK
from data.task import Boundary
from data.translation import (
    beam_decode,
    bleu_signature,
    corpus_bleu,
    greedy_decode,
    text_table,
    word_count,
)

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
    for width in (1, 3):
        assert beam_decode(forward, torch.ones(2, 1), 5, width) == [[], []]


def random_language(
    seed: int, vocabulary: int, scale: float = 2.0
) -> Callable[[Boundary], Boundary]:
    """Logits that depend on the source and the whole prefix, at random; rounded, so ties occur."""

    def logits(source: list[int], prefix: list[int]) -> Tensor:
        generator = torch.Generator().manual_seed(hash((seed, *source, -1, *prefix)) % (1 << 62))
        return (scale * torch.randn(vocabulary, generator=generator)).round(decimals=1)

    def forward(inputs: Boundary) -> Boundary:
        pairs = zip(*(x.tolist() for x in inputs), strict=True)
        last = torch.stack([logits(source, prefix) for source, prefix in pairs])
        return (last[:, None].expand(-1, inputs[1].shape[1], -1),)

    return forward


def score(
    forward: Callable[[Boundary], Boundary], source: Tensor, pieces: list[int], alpha: float
) -> float:
    """The length-normalised score of pieces and an end, one piece at a time."""
    target, total = [BOS], 0.0
    for piece in [*pieces, EOS]:
        (logits,) = forward((source[None], torch.tensor([target])))
        total += logits[0, -1].double().log_softmax(0)[piece].item()
        target.append(piece)
    return total / len(target[1:]) ** alpha


def best_of_all(
    forward: Callable[[Boundary], Boundary],
    source: Tensor,
    words: range,
    longest: int,
    alpha: float,
) -> list[int]:
    """The best complete hypothesis of at most `longest` pieces, by trying all."""
    every = (list(y) for n in range(longest) for y in itertools.product(words, repeat=n))
    return max(every, key=lambda y: score(forward, source, y, alpha))


SOURCES = torch.arange(6)[:, None]


@pytest.mark.parametrize("seed", range(8))
def test_a_beam_of_one_is_greedy(seed: int) -> None:
    forward = random_language(seed, vocabulary=6 + seed)
    greedy = greedy_decode(forward, SOURCES, max_target=7)
    assert beam_decode(forward, SOURCES, 7, width=1) == greedy
    assert len({len(y) for y in greedy}) > 1  # some end, some are cut


def test_a_beam_of_one_tells_neighbouring_numbers_apart() -> None:
    """One unit in the last place decides, and by then log P is large."""

    def forward(inputs: Boundary) -> Boundary:
        logits = torch.full((*inputs[1].shape, 1000), 0.1)
        logits[:, :, EOS] = -1.0
        better = 7 + inputs[1].shape[1]
        logits[:, :, better] = logits[:, :, better].nextafter(torch.tensor(1.0))
        return (logits,)

    assert beam_decode(forward, torch.ones(1, 1), 6, width=1) == [[8, 9, 10, 11, 12, 13]]


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_wide_beam_finds_the_best_of_all(seed: int, alpha: float) -> None:
    forward, words, longest = random_language(seed, vocabulary=6), range(UNK, 6), 4
    found = beam_decode(forward, SOURCES, longest, width=3**longest, length_penalty=alpha)
    for source, pieces in zip(SOURCES, found, strict=True):
        assert pieces == best_of_all(forward, source, words, longest, alpha)


def language(table: dict[tuple[int, ...], dict[int, float]]) -> Callable[[Boundary], Boundary]:
    """What each prefix goes on with, and how likely; a prefix that is not there ends for sure."""

    def forward(inputs: Boundary) -> Boundary:
        logits = torch.full((*inputs[1].shape, B + 1), -torch.inf)
        for row, (_, *prefix) in zip(logits, inputs[1].tolist(), strict=True):
            for piece, p in table.get(tuple(prefix), {EOS: 1.0}).items():
                row[-1, piece] = torch.tensor(p, dtype=torch.float64).log()
        return (logits,)

    return forward


GARDEN_PATH = {
    (): {A: 0.6, B: 0.4},
    (A,): {A: 0.4, B: 0.35, EOS: 0.25},
    (B,): {A: 0.95, EOS: 0.05},
}
"""The more likely first piece leads to the less likely sentences"""


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_beam_search_beats_greedy(alpha: float) -> None:
    forward, source = language(GARDEN_PATH), torch.ones(1, 1, dtype=torch.int64)
    (greedy,) = greedy_decode(forward, source, max_target=4)
    (beam,) = beam_decode(forward, source, 4, width=2, length_penalty=alpha)
    assert (greedy, beam) == ([A, A], [B, A])
    assert score(forward, source[0], beam, alpha) > score(forward, source[0], greedy, alpha)
    assert beam == best_of_all(forward, source[0], range(UNK, B + 1), 4, alpha)


def test_a_complete_hypothesis_takes_no_place_in_the_beam() -> None:
    first = {A: 0.5, EOS: 0.3, B: 0.2}
    forward = language({(): first, (A,): {A: 0.35, B: 0.35, EOS: 0.3}, (B,): {A: 1.0}})
    assert beam_decode(forward, torch.ones(1, 1), 3, width=2) == [[B, A]]


def test_the_length_penalty_decides_between_short_and_long() -> None:
    halves = {(): {EOS: 0.3, A: 0.7}, (A,): {A: 0.7, EOS: 0.3}, (A, A): {A: 0.5, EOS: 0.5}}
    forward, source = language(halves), torch.ones(1, 1, dtype=torch.int64)
    assert beam_decode(forward, source, 3, width=8, length_penalty=0.0) == [[]]
    assert beam_decode(forward, source, 3, width=8, length_penalty=1.0) == [[A, A]]


def counted(
    forward: Callable[[Boundary], Boundary], shapes: list[tuple[int, ...]]
) -> Callable[[Boundary], Boundary]:
    def counting(inputs: Boundary) -> Boundary:
        assert not torch.is_grad_enabled()
        shapes.append(tuple(inputs[1].shape))
        return forward(inputs)

    return counting


def test_beam_search_stops_when_nothing_can_improve() -> None:
    """After the end with 0.9 the rest, 0.1 at most, would need more than 20 pieces at no cost."""
    shapes: list[tuple[int, ...]] = []
    sure = counted(language({(): {EOS: 0.9, A: 0.1}, (A,): {A: 1.0}}), shapes)
    assert beam_decode(sure, torch.ones(1, 1), 20, width=2) == [[]]
    assert shapes == [(1, 1)]
    shapes.clear()
    assert beam_decode(sure, torch.ones(1, 1), 30, width=2) == [[]]
    assert shapes == [(1, 1), (2, 2), (2, 3)]  # 30 pieces could have been better


def test_the_worst_complete_hypothesis_must_beat_the_beam_too() -> None:
    """Two are complete after two pieces, [A] with log(.286)/2 = -.63 and the empty one with
    log(.25) = -1.39; of the beam, (A, A) has log(.22)/2 = -.76 and goes on for sure. A search that
    compares the beam with the best of the two ends here, and misses A^7 with log(.22)/8 = -.19."""
    table = {(): {A: 0.55, EOS: 0.25, B: 0.2}, (A,): {EOS: 0.52, A: 0.4, B: 0.08}, (B,): {A: 1.0}}
    table |= {(A,) * k: {A: 1.0} for k in range(2, 7)} | {(A,) * 7: {EOS: 1.0}}
    forward, source = language(table), torch.ones(1, 1, dtype=torch.int64)
    (found,) = beam_decode(forward, source, 8, width=2)
    assert found == [A] * 7
    assert score(forward, source[0], found, 1.0) > score(forward, source[0], [A], 1.0) + 0.4


def test_the_search_ends_when_width_complete_ones_beat_the_beam() -> None:
    """[B] with log(.36)/2 = -.51 and [A] with log(.204)/2 = -.795 are no worse than the beam's
    log(.198)/2 = -.81, so the search ends, although A^7 would have log(.198)/8 = -.20: it is a
    heuristic. At width 3 the third is not complete by then, and A^7 is found."""
    table = {(): {A: 0.6, B: 0.4}, (A,): {EOS: 0.34, A: 0.33, B: 0.33}, (B,): {EOS: 0.9, A: 0.1}}
    table |= {(A,) * k: {A: 1.0} for k in range(2, 7)} | {(A,) * 7: {EOS: 1.0}}
    shapes: list[tuple[int, ...]] = []
    forward = counted(language(table), shapes)
    assert beam_decode(forward, torch.ones(1, 1), 8, width=2) == [[B]]
    assert shapes == [(1, 1), (2, 2)]
    assert beam_decode(forward, torch.ones(1, 1), 8, width=3) == [[A] * 7]


def test_a_sentence_leaves_the_beam_when_it_is_done() -> None:
    shapes: list[tuple[int, ...]] = []

    def forward(inputs: Boundary) -> Boundary:
        """Source k asks for k pieces A, then the end, nearly for sure."""
        source, target = inputs
        piece = torch.where(target.shape[1] > source, EOS, A)
        return (20 * F.one_hot(piece.expand_as(target), 8).float(),)

    sources = torch.tensor([[2], [0], [3]])
    decoded = beam_decode(counted(forward, shapes), sources, 5, width=2)
    assert decoded == [[A, A], [], [A, A, A]]  # and none of the improbable short ones
    assert shapes == [(3, 1), (4, 2), (4, 3), (2, 4)]


def test_ties_go_to_the_smaller_piece() -> None:
    def forward(inputs: Boundary) -> Boundary:
        return (torch.zeros(*inputs[1].shape, 8),)

    for width in (1, 2, 5):
        assert beam_decode(forward, torch.ones(3, 1), 3, width) == [[]] * 3
    even = language({(): {A: 0.5, B: 0.5}})
    assert beam_decode(even, torch.ones(1, 1), 3, width=4) == [[A]]


@pytest.mark.parametrize(("width", "alpha"), [(0, 1.0), (2, -0.1), (2, float("nan"))])
def test_bad_beams_are_refused(width: int, alpha: float) -> None:
    with pytest.raises(ValueError, match=f"width={width}, length_penalty={alpha}"):
        beam_decode(random_language(0, 8), torch.ones(1, 1), 3, width, alpha)


def test_a_table_has_one_line_a_sentence() -> None:
    columns = {"source": ["eins", "zwei\tdrei"], "beam": ["", "two\nthree"]}
    assert text_table(columns) == "source\tbeam\neins\t\nzwei drei\ttwo three\n"
    with pytest.raises(ValueError, match="shorter"):
        text_table({"source": ["eins"], "beam": []})


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
