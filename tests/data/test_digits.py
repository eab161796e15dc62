"""Task `digits`: folds, purity, normalisation, augmentation, metric."""

from __future__ import annotations

import pickle
from collections import Counter
from functools import partial
from timeit import repeat

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from data.digits import FOLDS, Digits, scans, shifts, splits
from data.task import Boundary, Task

SAMPLES = 1797


@pytest.fixture(scope="module")
def task() -> Digits:
    return Digits(seed=0, batch_size=64, microbatches=8)


def test_five_seeds_test_every_sample_once() -> None:
    tested = Counter(i for _, test in splits() for i in test.tolist())
    assert tested == Counter(range(SAMPLES))
    for seed in range(FOLDS):
        task = Digits(seed, 64, 8)
        train, test = splits()[seed]
        assert not set(train) & set(test) and len(train) + len(test) == SAMPLES
        assert torch.equal(task.test.labels, scans().labels[test])
    assert torch.equal(Digits(7, 64, 8).test.images, Digits(2, 64, 8).test.images)


def test_folds_are_stratified(task: Digits) -> None:
    share = task.test.labels.bincount() / len(task.test.labels)
    assert torch.allclose(share, scans().labels.bincount() / SAMPLES, atol=0.005)


def test_normalised_by_the_training_part_only(task: Digits) -> None:
    train, test = splits()[0]
    mean = scans().images[train].mean()
    assert torch.equal(task.test.images, scans().images[test] - mean)
    assert abs(task.train.images.mean()) < 1e-5
    assert task.train.images.max() - task.train.images.min() == pytest.approx(1)


def test_shapes(task: Digits) -> None:
    (images,), target = task.microbatch(5)
    assert images.shape == (8, 1, 8, 8) and images.dtype == torch.float32
    assert target.shape == (8,) and target.dtype == torch.int64


@pytest.mark.parametrize("augment", [False, True])
def test_microbatch_is_pure(augment: bool) -> None:
    make = partial(Digits, seed=3, batch_size=64, microbatches=8, augment=augment)
    first, second = make(), pickle.loads(pickle.dumps(make()))
    asked = [1000, 0, 179, 180, 0]  # 179 holds the end of epoch 0
    backwards = {m: second.microbatch(m) for m in reversed(asked)}
    for m in asked:
        (images,), target = first.microbatch(m)
        assert torch.equal(images, backwards[m].inputs[0])
        assert torch.equal(target, backwards[m].target)


@pytest.mark.parametrize("augment", [False, True])
def test_microbatches_of_a_step_are_the_mini_batch(augment: bool) -> None:
    parts, whole = (Digits(0, 64, n, augment=augment) for n in (8, 1))
    for step in (0, 22):  # step 22 begins in epoch 0 and ends in epoch 1
        batches = [parts.microbatch(8 * step + j) for j in range(8)]
        (images,), target = whole.microbatch(step)
        assert torch.equal(torch.cat([b.inputs[0] for b in batches]), images)
        assert torch.equal(torch.cat([b.target for b in batches]), target)


def shifted(image: Tensor, down: int, right: int, background: float) -> Tensor:
    """One image [8, 8] moved, pixel by pixel."""
    out = torch.full_like(image, background)
    for y in range(8):
        for x in range(8):
            if 0 <= y + down < 8 and 0 <= x + right < 8:
                out[y + down, x + right] = image[y, x]
    return out


def test_augmentation_shifts_by_at_most_a_pixel_and_is_off_by_default(task: Digits) -> None:
    augmented = Digits(0, 64, 8, augment=True)
    background = task.train.images.min().item()
    samples = task.order.samples(2)
    by = shifts(0, task.order.size, 0)
    assert by.min() == -1 and by.max() == 1
    (plain,), (moved,) = task.microbatch(2).inputs, augmented.microbatch(2).inputs
    assert torch.equal(plain, task.train.images[samples])
    expected = [
        shifted(image[0], *by[i].tolist(), background)
        for image, i in zip(plain, samples, strict=True)
    ]
    assert torch.equal(moved[:, 0], torch.stack(expected))
    assert torch.equal(augmented.test.images, task.test.images)


def test_accuracy_and_resolution(task: Digits) -> None:
    labels = task.test.labels

    def guess(answers: Tensor) -> float:
        def forward(inputs: Boundary) -> Boundary:
            assert torch.equal(inputs[0], task.test.images) and not torch.is_grad_enabled()
            return (F.one_hot(answers, 10).float(),)

        return task.evaluate(forward)

    one_wrong = labels.clone()
    one_wrong[0] = (labels[0] + 1) % 10
    assert guess(labels) == 100
    assert 100 - guess(one_wrong) == pytest.approx(task.resolution())
    assert guess((labels + 1) % 10) == 0


def test_loss_is_cross_entropy() -> None:
    logits, target = torch.randn(6, 10), torch.arange(6)
    for smoothing in (0.0, 0.1):
        task = Digits(0, 64, 8, label_smoothing=smoothing)
        log_p = logits.log_softmax(1)
        hit = log_p[torch.arange(6), target]
        expected = -((1 - smoothing) * hit + smoothing * log_p.mean(1)).mean()
        torch.testing.assert_close(task.loss((logits,), target), expected)


def test_microbatch_is_quick_and_the_instance_small(task: Digits) -> None:
    assert min(repeat(partial(task.microbatch, 7), number=50, repeat=5)) / 50 < 1e-3
    assert len(pickle.dumps(task)) < 1000


def test_is_a_task(task: Digits) -> None:
    checked: Task = task
    assert (checked.name, checked.metric) == ("digits", "accuracy")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"batch_size": 60},
            "batch_size=60 is not a multiple of microbatches=8: use batch_size=64",
        ),
        ({"batch_size": 2000}, "batch_size=2000 does not fit"),
        ({"label_smoothing": 1.0}, "label_smoothing=1.0 is not in"),
        ({"seed": -1}, "seed=-1 is negative"),
    ],
)
def test_bad_arguments(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        Digits(**{"seed": 0, "batch_size": 64, "microbatches": 8, **arguments})
    assert "\n" not in str(error.value)
