"""Task `phrases`: translate German number, ordinal, date and unit phrases into English."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from data import checks
from data.corpus import Pair
from data.order import Order
from data.phrasebook import Phrasebook, phrasebook
from data.subwords import PAD, default_cache
from data.task import Boundary, Final, Microbatch, Task
from data.translation import (
    beam_decode,
    bleu_signature,
    corpus_bleu,
    greedy_decode,
    text_table,
    word_count,
)


class Phrases(Task):
    """Task `phrases` for one run; the seed decides the data order only, never the test part.

    Args:
        seed: of the data order.
        batch_size: B, pairs a step.
        microbatches: N.
        vocabulary: sub-word pieces of both languages together, the special ones included.
        max_length: pieces with BOS or EOS; pairs with a longer side are left out of both parts
            (none, at the defaults).
        label_smoothing: 0 <= ε < 1.
        evaluate_limit: score the first so many test phrases only; None: all of them.
        beam: hypotheses kept by beam search in the final scoring; 1: greedy only.
        cache: folder that keeps the sub-words; None: `$REPRODUCE_RESULTS/cache`.

    Raises:
        ValueError: an argument is out of range (one line, with the mend).
    """

    name = "phrases"
    metric = "bleu"

    def __init__(
        self,
        seed: int,
        batch_size: int,
        microbatches: int,
        vocabulary: int = 400,
        max_length: int = 32,
        label_smoothing: float = 0.0,
        evaluate_limit: int | None = None,
        beam: int = 1,
        cache: str | Path | None = None,
    ) -> None:
        if evaluate_limit is not None and evaluate_limit < 1:
            raise ValueError(f"evaluate_limit={evaluate_limit} scores nothing: use 1 or more")
        if beam < 1:
            raise ValueError(f"beam={beam} keeps no hypothesis: use 1 (greedy) or more")
        self.vocabulary = vocabulary
        self.max_length = max_length
        self.label_smoothing = checks.label_smoothing(label_smoothing)
        self.evaluate_limit = evaluate_limit
        self.beam = beam
        self.cache = default_cache() if cache is None else Path(cache)
        self.order = Order(seed, len(self.book.train.source), batch_size, microbatches)
        self.last_hypotheses: list[str] = []
        """What the last `evaluate` decoded, in the order of `test_pairs`"""

    # The tensors stay in the process-wide cache: an instance is small, and cheap to send.
    @property
    def book(self) -> Phrasebook:
        return phrasebook(self.vocabulary, self.max_length, self.cache)

    @property
    def max_source(self) -> int:
        """S, pieces"""
        return self.book.test.source.shape[1]

    @property
    def max_target(self) -> int:
        """T, pieces"""
        return self.book.test.target_in.shape[1]

    @property
    def test_pairs(self) -> tuple[Pair, ...]:
        """The held-out phrases that `evaluate` scores."""
        return self.book.test_pairs[: self.evaluate_limit]

    @property
    def signature(self) -> str:
        """sacrebleu's, to be recorded with the metric."""
        return bleu_signature()

    def microbatch(self, m: int) -> Microbatch:
        """Micro-batch m: inputs (source [b, S], target_in [b, T]), target [b, T], all int64."""
        samples = torch.from_numpy(self.order.samples(m))
        source, target_in, target_out = (x[samples] for x in self.book.train)
        return Microbatch((source, target_in), target_out)

    def loss(self, outputs: Boundary, target: Tensor) -> Tensor:
        """Cross entropy of logits [b, T, V], mean over the real pieces of the micro-batch."""
        return F.cross_entropy(
            outputs[0].flatten(0, 1),
            target.flatten(),
            ignore_index=PAD,
            label_smoothing=self.label_smoothing,
        )

    def evaluate(self, forward: Callable[[Boundary], Boundary]) -> float:
        """BLEU of greedy translations of the test phrases, in percent."""
        source = self.book.test.source[: self.evaluate_limit]
        pieces = greedy_decode(forward, source, self.max_target)
        self.last_hypotheses = self.book.processor.decode(pieces)
        return self._bleu(self.last_hypotheses)

    def final(self, forward: Callable[[Boundary], Boundary]) -> Final:
        """BLEU, in percent, of the translations that `evaluate` has just made and, with a beam, of
        beam search; and all of them beside their sources and references in `hypotheses.txt`."""
        if not self.last_hypotheses:
            self.evaluate(forward)
        found = {"greedy": self.last_hypotheses}
        if self.beam > 1:
            source = self.book.test.source[: self.evaluate_limit]
            pieces = beam_decode(forward, source, self.max_target, self.beam)
            found["beam"] = self.book.processor.decode(pieces)
        sides = {side: [getattr(p, side) for p in self.test_pairs] for side in ("source", "target")}
        columns = {"source": sides["source"], "reference": sides["target"], **found}
        scores = {f"bleu_{search}": self._bleu(texts) for search, texts in found.items()}
        return Final(scores, {"hypotheses.txt": text_table(columns)})

    def _bleu(self, hypotheses: list[str]) -> float:
        return corpus_bleu(hypotheses, [pair.target for pair in self.test_pairs])

    def resolution(self) -> float:
        """One word of the references, in percent (about what one wrong word costs)."""
        return 100 / word_count([pair.target for pair in self.test_pairs])
