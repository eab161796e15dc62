"""Task `phrases`: shapes, purity, loss, and BLEU of oracles."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from data.corpus import corpus
from data.phrases import Phrases
from data.subwords import BOS, EOS, PAD, cache_path
from data.task import Boundary, Final, Task
from data.tasks import TASKS
from data.translation import corpus_bleu
from models.transformer import transformer

Make = Callable[..., Phrases]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    cache = tmp_path_factory.mktemp("cache")
    return partial(Phrases, seed=0, batch_size=64, microbatches=8, cache=cache)


def oracle(task: Phrases) -> Callable[[Boundary], Boundary]:
    """A forward that knows the translation of every test phrase."""
    test = task.book.test
    answers = {tuple(s): t for s, t in zip(test.source.tolist(), test.target_out, strict=True)}

    def forward(inputs: Boundary) -> Boundary:
        source, so_far = inputs
        target = torch.stack([answers[tuple(row)] for row in source.tolist()])
        return (50 * F.one_hot(target[:, : so_far.shape[1]], task.vocabulary).float(),)

    return forward


def always(piece: int) -> Callable[[Boundary], Boundary]:
    """A forward that says one piece for ever."""
    return lambda inputs: (F.one_hot(torch.full_like(inputs[1], piece), 400).float(),)


def text(task: Phrases, row: Tensor) -> str:
    return task.book.processor.decode([p for p in row.tolist() if p not in (PAD, BOS, EOS)])


def test_shapes_and_shift(make: Make) -> None:
    task = make()
    (source, target_in), target = task.microbatch(3)
    assert source.shape == (8, task.max_source) and source.dtype == torch.int64
    assert target_in.shape == target.shape == (8, task.max_target)
    assert max(task.max_source, task.max_target) <= 32
    assert (target_in[:, 0] == BOS).all()
    for ahead, behind in zip(target_in, target, strict=True):
        length = int((behind != PAD).sum())
        assert behind[length - 1] == EOS and (behind[length:] == PAD).all()
        assert torch.equal(ahead[1:length], behind[: length - 1])
        assert (ahead[length:] == PAD).all()


def test_microbatches_are_training_pairs(make: Make) -> None:
    task = make()
    (source, _), target = task.microbatch(11)
    pairs = {(text(task, s), text(task, t)) for s, t in zip(source, target, strict=True)}
    assert pairs <= set(corpus().train)


def test_microbatch_is_pure(make: Make) -> None:
    first, second = make(seed=2), pickle.loads(pickle.dumps(make(seed=2)))
    asked = [5000, 0, 1311, 0]
    backwards = {m: second.microbatch(m) for m in reversed(asked)}
    for m in asked:
        inputs, target = first.microbatch(m)
        assert all(map(torch.equal, inputs, backwards[m].inputs))
        assert torch.equal(target, backwards[m].target)


def test_microbatches_of_a_step_are_the_mini_batch(make: Make) -> None:
    whole = make(microbatches=1).microbatch(5)
    parts = [make().microbatch(8 * 5 + j) for j in range(8)]
    assert torch.equal(torch.cat([p.inputs[0] for p in parts]), whole.inputs[0])
    assert torch.equal(torch.cat([p.inputs[1] for p in parts]), whole.inputs[1])
    assert torch.equal(torch.cat([p.target for p in parts]), whole.target)


def test_the_seed_moves_the_order_and_not_the_test_part(make: Make) -> None:
    first, second = make(seed=0), make(seed=1)
    assert first.test_pairs == second.test_pairs == corpus().test
    assert not torch.equal(first.microbatch(0).target, second.microbatch(0).target)


def test_subwords_come_from_the_training_part_only(make: Make) -> None:
    task = make()
    lines = [side for pair in corpus().train for side in pair]
    assert cache_path(lines, 400, task.cache).is_file()


def test_pieces_give_the_text_back(make: Make) -> None:
    task = make()
    assert len(task.book.train.source) == len(corpus().train)  # the length limit drops none
    for encoded, pairs in ((task.book.train, corpus().train), (task.book.test, corpus().test)):
        for column, side in ((encoded.source, "source"), (encoded.target_out, "target")):
            texts = [getattr(pair, side) for pair in pairs[::50]]
            assert [text(task, row) for row in column[::50]] == texts


def test_bleu_of_oracles(make: Make) -> None:
    task = make()
    assert task.evaluate(oracle(task)) == pytest.approx(100)
    assert task.last_hypotheses == [pair.target for pair in task.test_pairs]
    assert task.evaluate(always(EOS)) == 0
    assert task.last_hypotheses == [""] * len(task.test_pairs)
    assert task.evaluate(always(5)) < 1


def test_evaluate_limit(make: Make) -> None:
    task = make(evaluate_limit=20)
    assert task.evaluate(oracle(task)) == pytest.approx(100)
    assert len(task.last_hypotheses) == len(task.test_pairs) == 20
    assert task.resolution() > make().resolution() > 0


def network(task: Phrases) -> Callable[[Boundary], Boundary]:
    """An untrained Transformer in eval mode."""
    net = transformer(task.vocabulary, 8, 2, 16, 1, 1, 0.0, max_length=task.max_length, pad=PAD)
    block = net.block(range(len(net)), 0).eval()
    return lambda inputs: block(*inputs, seed=0, microbatch=-1)


def rows(final: Final) -> list[list[str]]:
    assert final.texts.keys() == {"hypotheses.txt"}
    text = final.texts["hypotheses.txt"]
    assert text.endswith("\n")
    return [line.split("\t") for line in text[:-1].split("\n")]


def test_final_of_an_oracle(make: Make) -> None:
    task = make(evaluate_limit=20, beam=3)
    task.evaluate(oracle(task))
    final = task.final(oracle(task))
    assert final.scores == pytest.approx({"bleu_greedy": 100, "bleu_beam": 100})
    header, *lines = rows(final)
    assert header == ["source", "reference", "greedy", "beam"]
    assert lines == [
        [pair.source, pair.target, pair.target, pair.target] for pair in task.test_pairs
    ]


def test_final_of_an_untrained_network(make: Make) -> None:
    task = make(evaluate_limit=20, beam=4)
    greedy = task.evaluate(network(task))
    final = task.final(network(task))
    header, *lines = rows(final)
    assert {len(line) for line in lines} == {len(header)} and len(lines) == 20
    assert [line[2] for line in lines] == task.last_hypotheses
    assert final.scores["bleu_greedy"] == greedy
    beam = [line[3] for line in lines]
    assert final.scores["bleu_beam"] == corpus_bleu(beam, [pair.target for pair in task.test_pairs])
    assert beam != task.last_hypotheses


def test_final_decodes_what_was_not_evaluated_only(make: Make) -> None:
    task, calls = make(evaluate_limit=20), []
    says = always(5)

    def forward(inputs: Boundary) -> Boundary:
        calls.append(len(inputs[0]))
        return says(inputs)

    first = task.final(forward)
    assert first.scores.keys() == {"bleu_greedy"} and rows(first)[0][2:] == ["greedy"]
    asked = len(calls)
    assert asked == task.max_target
    assert task.final(forward) == first and len(calls) == asked


def test_loss_is_the_mean_over_real_pieces(make: Make) -> None:
    target = torch.tensor([[4, 5, EOS, PAD], [6, EOS, PAD, PAD]])
    logits = torch.randn(2, 4, 10)
    real = target != PAD
    for smoothing in (0.0, 0.1):
        log_p = logits.log_softmax(2)[real]
        hit = log_p.gather(1, target[real][:, None])[:, 0]
        expected = -((1 - smoothing) * hit + smoothing * log_p.mean(1)).mean()
        loss = make(label_smoothing=smoothing).loss((logits,), target)
        torch.testing.assert_close(loss, expected)
    uniform = make().loss((torch.zeros(2, 4, 10),), target)
    assert uniform.item() == pytest.approx(math.log(10))


def test_shorter_phrases_only(make: Make) -> None:
    task = make(max_length=7)
    assert max(task.max_source, task.max_target) == 7
    assert 0 < len(task.test_pairs) < len(corpus().test)
    assert task.evaluate(oracle(task)) == pytest.approx(100)


def test_an_instance_is_small_and_a_task(make: Make) -> None:
    task: Task = make()
    assert len(pickle.dumps(task)) < 1000
    assert (task.name, task.metric) == ("phrases", "bleu")
    assert {name: cls.name for name, cls in TASKS.items()} == {name: name for name in TASKS}


def test_cache_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPRODUCE_RESULTS", str(tmp_path))
    Phrases(0, 64, 8)
    assert len(list((tmp_path / "cache").glob("bpe-400-*.model"))) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 63}, "batch_size=63 is not a multiple of microbatches=8"),
        ({"batch_size": 80_000}, "batch_size=80000 does not fit"),
        ({"vocabulary": 50}, "vocabulary=50 does not suit"),
        ({"vocabulary": 50_000}, "vocabulary=50000 does not suit"),
        ({"max_length": 1}, "max_length=1 leaves no phrases"),
        ({"label_smoothing": -0.1}, "label_smoothing=-0.1 is not in"),
        ({"evaluate_limit": 0}, "evaluate_limit=0 scores nothing"),
        ({"beam": 0}, "beam=0 keeps no hypothesis"),
    ],
)
def test_bad_arguments(make: Make, arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        make(**arguments)
    assert "\n" not in str(error.value)
