"""The corpus of task `phrases`: what it holds, and that nothing held out is seen in training."""

from __future__ import annotations

import subprocess
import sys

from data.corpus import Pair, corpus

KINDS = [
    Pair("zweiundvierzig", "forty-two"),
    Pair("dritte", "third"),
    Pair("neunzehnhundertvierundachtzig", "nineteen eighty-four"),
    Pair("29. Februar", "February 29"),
    Pair("vor 3 Tagen", "3 days ago"),
    Pair("1 Kilometer", "1 kilometer"),
]


def test_no_test_phrase_is_in_the_training_part() -> None:
    train, test = corpus()
    assert not {p.source for p in train} & {p.source for p in test}
    assert not {p.target for p in train} & {p.target for p in test}


def test_every_source_is_there_once_and_plain() -> None:
    pairs = [*corpus().train, *corpus().test]
    assert len({p.source for p in pairs}) == len(pairs)
    assert all(text and text == " ".join(text.split()) for p in pairs for text in p)


def test_size_and_kinds() -> None:
    train, test = corpus()
    assert 8_000 <= len(train) <= 12_000 and 300 <= len(test) <= 500
    assert set(KINDS) <= {*train, *test}
    for shape in ("day", "thousand", "quarter", "second", "kilo", "19", " ago", "eighteen "):
        assert any(shape in p.target for p in test), shape


def test_another_process_makes_the_same_corpus() -> None:
    script = "from data.corpus import corpus; import hashlib as h; print({})"
    digest = "h.sha256(repr(corpus()).encode()).hexdigest()"
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script.format(digest)],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
