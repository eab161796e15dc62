"""What every translation task shares: greedy decoding and BLEU."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from sacrebleu.metrics.bleu import BLEU
from torch import Tensor

from data.subwords import BOS, EOS, PAD
from data.task import Boundary


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
    never = torch.tensor([PAD, BOS])
    for t in range(1, max_target + 1):
        (logits,) = forward((source[active], hypotheses[active, :t]))
        scores = logits[:, -1].cpu().index_fill(1, never, -torch.inf)
        hypotheses[active, t] = scores.argmax(1)
        active = active[hypotheses[active, t] != EOS]
        if not len(active):
            break
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
