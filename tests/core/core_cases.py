"""Small tasks, units and jobs, picklable, for the tests of the core."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LRScheduler,
)

from data.task import Microbatch, Task
from models.resnet import resnet, resnet_from_layers
from models.transformer import transformer
from models.unit import Blueprint, Boundary, Network, Unit
from reproduce.job import Job, Outcome
from reproduce.methods import METHODS, Method

DETERMINISTIC = [name for name, row in METHODS.items() if not row.lockfree]
"""Rows that both engines run, to the same bits"""

PAD = 0
VOCABULARY = 30
CLASSES = 10


def generator(*numbers: int) -> torch.Generator:
    """A generator of its own for these numbers."""
    seed = 0
    for number in numbers:
        seed = seed * 1_000_003 + number + 17
    return torch.Generator().manual_seed(seed % (1 << 62))


class Images(Task):
    """Noisy copies of ten fixed pictures. The metric is the mean probability of the truth: a real
    number that every bit of the weights goes into, unlike an accuracy."""

    name, metric = "images", "accuracy"

    def __init__(self, batch: int = 3, side: int = 8, seed: int = 0) -> None:
        self.batch, self.side, self.seed = batch, side, seed

    def microbatch(self, m: int) -> Microbatch:
        random = generator(self.seed, m)
        pictures = torch.randn(CLASSES, 1, self.side, self.side, generator=generator(self.seed))
        target = torch.randint(CLASSES, (self.batch,), generator=random)
        noise = torch.randn(self.batch, 1, self.side, self.side, generator=random)
        return Microbatch((pictures[target] + 0.5 * noise,), target)

    def loss(self, outputs: Boundary, target: Tensor) -> Tensor:
        return F.cross_entropy(outputs[0], target)

    def evaluate(self, forward: Callable[[Boundary], Boundary]) -> float:
        inputs, target = self.microbatch(1_000_000)
        probability = forward(inputs)[0].double().softmax(-1)
        return 100.0 * probability.gather(1, target[:, None]).mean().item()

    def resolution(self) -> float:
        return 1e-9


class Sentences(Task):
    """Random tokens, the source padded on the right, to be copied backwards."""

    name, metric = "sentences", "bleu"

    def __init__(self, batch: int = 2, length: int = 5, seed: int = 0) -> None:
        self.batch, self.length, self.seed = batch, length, seed

    def microbatch(self, m: int) -> Microbatch:
        random = generator(self.seed, 1, m)
        source = torch.randint(1, VOCABULARY, (self.batch, self.length), generator=random)
        target = source.flip(1)
        source[0, self.length - 1 - m % 2 :] = PAD
        return Microbatch((source, target.roll(1, dims=1)), target)

    def loss(self, outputs: Boundary, target: Tensor) -> Tensor:
        return F.cross_entropy(outputs[0].flatten(0, 1), target.flatten())

    def evaluate(self, forward: Callable[[Boundary], Boundary]) -> float:
        inputs, target = self.microbatch(1_000_000)
        return -self.loss(forward(inputs), target).double().item()

    def resolution(self) -> float:
        return 1e-9


class Regression(Task):
    """Random vectors and targets; the loss is a mean of squares."""

    name, metric = "regression", "accuracy"

    def __init__(self, batch: int = 3, width: int = 6, seed: int = 0) -> None:
        self.batch, self.width, self.seed = batch, width, seed

    def microbatch(self, m: int) -> Microbatch:
        random = generator(self.seed, 2, m)
        x = torch.randn(self.batch, self.width, generator=random, dtype=torch.float64)
        return Microbatch((x,), x.flip(1).sin())

    def loss(self, outputs: Boundary, target: Tensor) -> Tensor:
        return F.mse_loss(outputs[0], target.to(outputs[0].dtype))

    def evaluate(self, forward: Callable[[Boundary], Boundary]) -> float:
        inputs, target = self.microbatch(1_000_000)
        return -self.loss(forward(inputs), target).double().item()

    def resolution(self) -> float:
        return 1e-9


class Dense(Unit):
    """``(x, *rest) -> (tanh(layer norm(linear(x))), *rest)``: nothing depends on the batch."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(inputs, outputs), nn.LayerNorm(outputs)

    def forward(self, x: Tensor, *rest: Tensor) -> Boundary:
        return torch.tanh(self.norm(self.linear(x))), *rest


class Affine(Unit):
    """``(x, *rest) -> (linear(x), *rest)``"""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor, *rest: Tensor) -> Boundary:
        return self.linear(x), *rest


def network(*blueprints: Blueprint) -> Network:
    return Network("test", blueprints)


def dense(units: int = 4, width: int = 6) -> Network:
    """A chain of small units."""
    return network(*[partial(Dense, width, width)] * (units - 1), partial(Affine, width, width))


SMALL_RESNET = resnet_from_layers((1, 1), CLASSES, 2, "cifar", 1)
SMALL_TRANSFORMER = transformer(VOCABULARY, 8, 2, 16, 1, 1, dropout=0.2, max_length=6, pad=PAD)
RESNET_50 = resnet(50, CLASSES, 2, "cifar", 1)
TRANSFORMER_6_6 = transformer(VOCABULARY, 8, 2, 16, 6, 6, dropout=0.2, max_length=6, pad=PAD)

sgd = partial(torch.optim.SGD, lr=0.02, momentum=0.9, weight_decay=1e-3)
plain_sgd = partial(torch.optim.SGD, lr=0.02)
adam = partial(torch.optim.Adam, lr=1e-3)


def _ramp(step: int) -> float:
    return min(1.0, (step + 1) / 5)


def exponential(optimizer: Optimizer) -> LRScheduler:
    """A scheduler that makes each learning rate from the one it finds."""
    return ExponentialLR(optimizer, gamma=0.9)


def ramp_then_cosine(optimizer: Optimizer) -> LRScheduler:
    """A warm-up (a function of the step) and a cosine that chains, on top of one another."""
    return ChainedScheduler([LambdaLR(optimizer, _ramp), CosineAnnealingLR(optimizer, T_max=30)])


def make_job(net: Network, task: Callable[[], Any], method: str | Method, **settings: Any) -> Job:
    """A job whose every technique has something to do."""
    row = METHODS[method] if isinstance(method, str) else method
    defaults: dict[str, Any] = {
        "stages": 4,
        "microbatches": 2,
        "steps": 12,
        "optimizer": sgd,
        "annealing_steps": 8,
        "decay": 0.3,
        "sync_steps": 4,
    }
    return Job(network=net, task=task, method=row, **(defaults | settings))


def initial_weights(job: Job) -> list[Tensor]:
    """What training starts from, in unit order."""
    units = (job.network.build(j, job.seed) for j in range(len(job.network)))
    return [w.detach().to(job.dtype) for unit in units for w in unit.parameters()]


def assert_same(pipeline: Outcome, reference: Outcome) -> None:
    """To the last bit: everything that both engines say about a run."""
    assert pipeline.status == reference.status
    assert repr(pipeline.losses) == repr(reference.losses)  # NaN is equal to itself here
    assert repr(pipeline.metrics) == repr(reference.metrics)
    assert pipeline.scores == reference.scores
    assert pipeline.delays == reference.delays
    assert pipeline.drains >= 0
    pairs = zip(pipeline.weights, reference.weights, strict=True)
    unequal = [j for j, (a, b) in enumerate(pairs) if not same_bits(a, b)]
    assert not unequal, f"parameters {unequal} differ"
    assert pipeline.weights_sha256 == reference.weights_sha256


def same_bits(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(
        a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)
    )


def assert_trained(outcome: Outcome, job: Job) -> None:
    """Finished, and every weight moved to somewhere finite."""
    assert outcome.status == "finished"
    assert outcome.steps == job.steps
    start = initial_weights(job)
    assert all(w.isfinite().all() for w in outcome.weights)
    pairs = zip(outcome.weights, start, strict=True)
    still = [j for j, (now, before) in enumerate(pairs) if torch.equal(now, before)]
    assert not still, f"parameters {still} did not move"


class Counter(Unit):
    """``(total, one, log) -> (total + v * one, one, log with v)``: dv is always 1.

    Under SGD without momentum and with a learning rate of 1, v = -(number of updates).
    """

    def __init__(self) -> None:
        super().__init__()
        self.v = nn.Parameter(torch.zeros(1))

    def forward(self, total: Tensor, one: Tensor, log: Tensor) -> Boundary:
        return total + self.v * one, one, torch.cat((log, self.v.detach()))


class Log(Task):
    """Writes down the v of every `Counter` in the forward pass of every micro-batch."""

    name, metric = "log", "accuracy"

    def __init__(self, path: Path) -> None:
        self.path = path

    def microbatch(self, m: int) -> Microbatch:
        return Microbatch((torch.zeros(1), torch.ones(1), torch.zeros(0)), torch.tensor(m))

    def loss(self, outputs: Boundary, target: Tensor) -> Tensor:
        total, _, log = outputs
        with self.path.open("a") as file:  # the last stage only: one writer
            print(target.item(), *log.tolist(), file=file)
        return total.sum()

    def evaluate(self, forward: Callable[[Boundary], Boundary]) -> float:
        return 0.0

    def resolution(self) -> float:
        return 1.0


def counters(path: Path, method: str | Method, stages: int, **settings: Any) -> Job:
    """A job of `Counter` units, one a stage, in double precision."""
    defaults = {
        "stages": stages,
        "optimizer": partial(torch.optim.SGD, lr=1.0),
        "dtype": torch.float64,
        "divergence_loss": float("inf"),
    }
    return make_job(
        network(*[Counter] * stages), partial(Log, path), method, **(defaults | settings)
    )


def read_log(path: Path) -> dict[int, list[float]]:
    """Micro-batch -> the v of every stage in its forward pass, stage 1 first."""
    rows = [line.split() for line in path.read_text().splitlines()]
    return {int(m): [float(v) for v in values] for m, *values in rows}
