"""Sub-words: learnt from the text given, kept under its content, safe to share."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sentencepiece

from data.subwords import BOS, EOS, PAD, UNK, cache_path, default_cache, subwords

LINES = [f"{a}und{b}zig {a}" for a in ("ein", "zwei", "drei") for b in ("zwan", "vier", "fünf")]


def test_special_pieces_and_round_trip(tmp_path: Path) -> None:
    model = subwords(LINES, 60, tmp_path)
    assert (model.pad_id(), model.bos_id(), model.eos_id(), model.unk_id()) == (PAD, BOS, EOS, UNK)
    assert model.get_piece_size() == 60
    assert model.decode(model.encode(LINES)) == LINES


def test_kept_once_under_its_content(tmp_path: Path) -> None:
    subwords(LINES, 60, tmp_path / "made")
    path = cache_path(LINES, 60, tmp_path / "made")
    assert list(path.parent.iterdir()) == [path]
    others = [(LINES[1:], 60), (LINES[::-1], 60), (LINES, 61)]
    assert path not in [cache_path(*other, path.parent) for other in others]


def test_the_cached_model_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = subwords(LINES, 60, tmp_path)
    monkeypatch.delattr(sentencepiece, "SentencePieceTrainer")
    assert subwords(LINES, 60, tmp_path).encode(LINES) == first.encode(LINES)


def test_a_damaged_model_is_made_again(tmp_path: Path) -> None:
    path = cache_path(LINES, 60, tmp_path)
    whole = subwords(LINES, 60, tmp_path).serialized_model_proto()
    path.write_bytes(whole[: len(whole) // 2])
    assert subwords(LINES, 60, tmp_path).serialized_model_proto() == whole
    assert path.read_bytes() == whole


def test_many_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        models = list(pool.map(lambda _: subwords(LINES, 60, tmp_path), range(16)))
    assert len({model.serialized_model_proto() for model in models}) == 1
    assert list(tmp_path.iterdir()) == [cache_path(LINES, 60, tmp_path)]


def test_cache_is_in_the_results_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REPRODUCE_RESULTS", raising=False)
    assert default_cache() == Path("results/cache")
    monkeypatch.setenv("REPRODUCE_RESULTS", "/elsewhere")
    assert default_cache() == Path("/elsewhere/cache")


@pytest.mark.parametrize("vocabulary", [-1, 0, 5, 100_000])
def test_impossible_vocabulary(vocabulary: int, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"vocabulary={vocabulary} does not suit") as error:
        subwords(LINES, vocabulary, tmp_path)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []
