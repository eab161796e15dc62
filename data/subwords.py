"""Sub-words: one joint byte-pair encoding for both languages, by `sentencepiece`.

R. Sennrich, B. Haddow, A. Birch, Neural machine translation of rare words with subword units, 2016.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sentencepiece

PAD, BOS, EOS, UNK = range(4)
OPTIONS: dict[str, Any] = {
    "model_type": "bpe",
    "character_coverage": 1.0,
    "normalization_rule_name": "identity",
    "num_threads": 1,
    "pad_id": PAD,
    "bos_id": BOS,
    "eos_id": EOS,
    "unk_id": UNK,
}


def default_cache() -> Path:
    """The cache folder inside the results folder (`REPRODUCE_RESULTS`, or `results`)."""
    return Path(os.environ.get("REPRODUCE_RESULTS") or "results") / "cache"


def cache_path(lines: Sequence[str], vocabulary: int, cache: Path) -> Path:
    """Where the model of exactly this text, size, options and library version is kept."""
    key = [sentencepiece.__version__, vocabulary, OPTIONS, list(lines)]
    digest = hashlib.blake2b(json.dumps(key).encode(), digest_size=12).hexdigest()
    return cache / f"bpe-{vocabulary}-{digest}.model"


def subwords(
    lines: Sequence[str], vocabulary: int, cache: Path
) -> sentencepiece.SentencePieceProcessor:
    """The encoding learnt from `lines`, from the cache where it is there and whole.

    Safe with other processes: the file appears at once and complete, and all would write the same.

    Raises:
        ValueError: this text cannot give `vocabulary` pieces.
    """
    path = cache_path(lines, vocabulary, cache)
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=path.read_bytes())
    except (FileNotFoundError, RuntimeError):  # not there, or damaged
        model = _train(lines, vocabulary)
        _write(path, model)
        return sentencepiece.SentencePieceProcessor(model_proto=model)


def _train(lines: Sequence[str], vocabulary: int) -> bytes:
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            vocab_size=vocabulary,
            minloglevel=2,
            **OPTIONS,
        )
    except RuntimeError as error:
        # The library's message ends in the bound that was missed, after the condition in brackets.
        reason = str(error).rpartition("] ")[2] or "use 400"
        raise ValueError(f"vocabulary={vocabulary} does not suit this text: {reason}") from error
    return model.getvalue()


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        file = Path(folder) / path.name
        file.write_bytes(content)
        file.replace(path)
