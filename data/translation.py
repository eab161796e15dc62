"""What every translation task shares: greedy decoding, beam search and BLEU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from sacrebleu.metrics.bleu import BLEU
from torch import Tensor

from data.subwords import BOS, EOS, PAD
from data.task import Boundary

_NEVER = torch.tensor([PAD, BOS])
"""Pieces that no hypothesis goes on with"""


@torch.no_grad()
def greedy_decode(
    forward: Callable[[Boundary], Boundary], source: Tensor, max_target: int
) -> list[list[int]]:
    """The most probable next piece at every place, until the end-of-sentence piece.

    Args:
        forward: (source [n, S], target so far [n, t]), int64 -> (logits [n, t, V],).
        source: pieces, int64 [M, S], padded.
        max_target: the longest hypothesis, in pieces, the end of sentence included.

    Returns:
        M lists of pieces without the special ones at their ends; a list may be empty.
    """
    hypotheses = torch.full((len(source), max_target + 1), PAD)
    hypotheses[:, 0] = BOS
    active = torch.arange(len(source))
    for t in range(1, max_target + 1):
        (logits,) = forward((source[active], hypotheses[active, :t]))
        scores = logits[:, -1].cpu().index_fill(1, _NEVER, -torch.inf)
        hypotheses[active, t] = scores.argmax(1)
        active = active[hypotheses[active, t] != EOS]
        if not len(active):
            break
    return _stripped(hypotheses)


@torch.no_grad()
def beam_decode(
    forward: Callable[[Boundary], Boundary],
    source: Tensor,
    max_target: int,
    width: int,
    length_penalty: float = 1.0,
) -> list[list[int]]:
    """The best hypothesis y of each source found by beam search, by length-normalised score

        score(y) = log P(y | source) / |y|^length_penalty,    |y| in pieces, the end included.

    The search of fairseq (M. Ott et al., 2019), which has the same score: of the 2 width best
    continuations of the hypotheses in the beam, those among the first `width` that end are
    complete, and the first `width` that do not end are the next beam. A sentence is done when no
    continuation can beat the best complete hypothesis (log P only falls, so a hypothesis in the
    beam ends with log P / max_target^length_penalty at most), or when `width` are complete and the
    worst of the best `width` of them is no worse than the beam as it stands (the rule of
    transformers, T. Wolf et al., 2020: that of fairseq, `width` complete, stops at improbable short
    ones). Where none is complete after `max_target` pieces, the most probable of the beam is cut
    there. Ties go to the better hypothesis of the beam, then to the smaller piece. Width 1 is
    `greedy_decode`.

    Args:
        forward: (source [n, S], target so far [n, t]), int64 -> (logits [n, t, V],).
        source: pieces, int64 [M, S], padded.
        max_target: the longest hypothesis, in pieces, the end of sentence included.
        width: hypotheses in the beam, at least 1.
        length_penalty: 0 or more; 0: not normalised.

    Returns:
        M lists of pieces without the special ones at their ends; a list may be empty.

    Raises:
        ValueError: `width` or `length_penalty` is out of range.
    """
    if width < 1 or not length_penalty >= 0:
        raise ValueError(
            f"width={width}, length_penalty={length_penalty}: use a width of 1 or more and a "
            "penalty of 0 or more"
        )
    rows = torch.arange(len(source))  # the sentences not done
    beam = torch.full((len(source), 1, 1), BOS)
    log_p = torch.zeros(len(source), 1, dtype=torch.float64)
    best = torch.full((len(source), max_target + 1), PAD)
    scores = torch.full((len(source), width), -torch.inf, dtype=torch.float64)  # the best complete
    complete = torch.zeros(len(source), dtype=torch.int64)
    for t in range(1, max_target + 1):
        beam, log_p = _continuations(forward, source[rows], beam, log_p, 2 * width)
        ended = beam[:, :, t] == EOS
        counted = ended[:, :width] & (log_p[:, :width] != -torch.inf)
        score = (log_p[:, :width] / t**length_penalty).masked_fill(~counted, -torch.inf)
        top, place = score.max(1)
        better = counted.any(1) & ((complete[rows] == 0) | (top > scores[rows, 0]))
        best[rows[better], : t + 1] = beam[better, place[better]]
        scores[rows] = torch.cat((scores[rows], score), 1).topk(width).values
        complete[rows] += counted.sum(1)

        going_on = ended.int().argsort(dim=1, stable=True)[:, :width]
        log_p = log_p.masked_fill(ended, -torch.inf).gather(1, going_on)
        beam = beam.gather(1, going_on[:, :, None].expand(-1, -1, t + 1))
        attainable = log_p[:, 0] / max_target**length_penalty > scores[rows, 0]
        promising = log_p[:, 0] / t**length_penalty > scores[rows, -1]
        still = (complete[rows] == 0) | (attainable & promising)
        rows, beam, log_p = rows[still], beam[still], log_p[still]
        if not len(rows):
            break
    else:
        none = complete[rows] == 0
        best[rows[none]] = beam[none, 0]
    return _stripped(best)


def _continuations(
    forward: Callable[[Boundary], Boundary], source: Tensor, beam: Tensor, log_p: Tensor, count: int
) -> tuple[Tensor, Tensor]:
    """The `count` most probable continuations of each sentence's beam by one piece, best first.

    Args:
        source: [n, S].
        beam: hypotheses [n, w, t], with their log P [n, w] in double precision.

    Returns:
        Hypotheses [n, count, t + 1] and their log P [n, count].
    """
    n, w, t = beam.shape
    (logits,) = forward((source.repeat_interleave(w, 0), beam.flatten(0, 1)))
    # Double precision: adding to log P must not make ties of pieces that differ.
    step = logits[:, -1].cpu().double().log_softmax(1).index_fill(1, _NEVER, -torch.inf)
    vocabulary = step.shape[1]
    total = (log_p.flatten()[:, None] + step).view(n, w * vocabulary)
    best, flat = (x[:, :count] for x in total.sort(dim=1, descending=True, stable=True))
    parent = (flat // vocabulary)[:, :, None].expand(-1, -1, t)
    return torch.cat((beam.gather(1, parent), (flat % vocabulary)[:, :, None]), 2), best


def _stripped(hypotheses: Tensor) -> list[list[int]]:
    return [[p for p in row if p not in (PAD, BOS, EOS)] for row in hypotheses.tolist()]


def corpus_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """BLEU of detokenised text in percent, one reference each; an empty hypothesis counts.

    K. Papineni et al., 2002; M. Post, A call for clarity in reporting BLEU scores, 2018.

    Raises:
        ValueError: not as many hypotheses as references (sacrebleu would drop the rest), or none.
    """
    if len(hypotheses) != len(references) or not references:
        raise ValueError(
            f"{len(hypotheses)} hypotheses for {len(references)} references: "
            "give one for each, and at least one"
        )
    return float(BLEU().corpus_score(list(hypotheses), [list(references)]).score)


def bleu_signature() -> str:
    """sacrebleu's signature of `corpus_bleu`: what a score must be quoted with."""
    return str(BLEU(references=[["-"]]).get_signature())


def word_count(references: Sequence[str]) -> int:
    """Words of the references as BLEU counts them."""
    return int(BLEU().corpus_score(list(references), [list(references)]).ref_len)


def text_table(columns: Mapping[str, Sequence[str]]) -> str:
    """Columns of texts, equally long, as tab-separated lines under a line of their names."""
    rows = zip(*columns.values(), strict=True)
    lines = [tuple(columns), *([" ".join(text.split()) for text in row] for row in rows)]
    return "".join("\t".join(line) + "\n" for line in lines)
