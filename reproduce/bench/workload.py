"""What the benchmark trains: equal wide layers, a deep narrow ResNet, random data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from data.task import Microbatch, Task
from models.resnet import resnet
from models.unit import Boundary, Network, Unit
from reproduce.job import Job
from reproduce.methods import METHODS

WORKERS = 2
SEED = 0


class LinearReLU(Unit):
    """``([B, width],) -> (relu(linear(x)),)``; He's initialisation keeps the activations' size."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        nn.init.kaiming_normal_(self.linear.weight, nonlinearity="relu")

    def forward(self, x: Tensor) -> Boundary:
        return (F.relu(self.linear(x)),)


class RandomTask(Task):
    """Made-up samples of `classes` classes: a pool of micro-batches made once, then handed out.

    So data costs nothing while the clock runs, for us and for every peer. The metric is a constant.
    """

    name, metric = "random", "accuracy"
    POOL = 12

    def __init__(self, shape: tuple[int, ...], classes: int, samples: int) -> None:
        """Micro-batches of `samples` samples of `shape`."""
        generator = torch.Generator().manual_seed(SEED)

        def microbatch() -> Microbatch:
            inputs = torch.randn((samples, *shape), generator=generator)
            return Microbatch((inputs,), torch.randint(classes, (samples,), generator=generator))

        self._pool = [microbatch() for _ in range(self.POOL)]

    def microbatch(self, m: int) -> Microbatch:
        return self._pool[m % self.POOL]

    def minibatch(self, step: int, microbatches: int) -> tuple[Tensor, Tensor]:
        """All samples of a step as one batch: what the peers read."""
        first = step * microbatches
        parts = [self.microbatch(m) for m in range(first, first + microbatches)]
        return torch.cat([p.inputs[0] for p in parts]), torch.cat([p.target for p in parts])

    def loss(self, outputs: Boundary, target: Tensor) -> Tensor:
        return F.cross_entropy(outputs[0], target)

    def evaluate(self, forward: Callable[[Boundary], Boundary]) -> float:
        return 0.0

    def resolution(self) -> float:
        return 100.0


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    rounds: int
    """Times that every run is repeated"""
    units: int
    """Equal Linear+ReLU units of the wide MLP, split evenly over two workers"""
    width: int
    stages: int
    """P of the MLP's asynchronous runs; no delay, update or ratio depends on time"""
    samples: int
    """Samples a micro-batch of the MLP"""
    microbatches: int
    """Micro-batches a run of the MLP: the more, the smaller the share of pipeline fill and drain"""
    deep_samples: int
    """Samples a micro-batch of the deep network"""
    deep_microbatches: int
    lr: float = 0.001

    def steps(self, n: int) -> int:
        """Updates of a run with N micro-batches each."""
        return self.microbatches // n


FULL = Sizes(
    rounds=5, units=12, width=1024, stages=4, samples=32, microbatches=240,
    deep_samples=16, deep_microbatches=64,
)  # fmt: skip
QUICK = Sizes(
    rounds=2, units=4, width=32, stages=4, samples=4, microbatches=24,
    deep_samples=2, deep_microbatches=4,
)  # fmt: skip

DEEP_N = 16
DEEP_STAGES = 150


def mlp(sizes: Sizes) -> Network:
    return Network("mlp", (partial(LinearReLU, sizes.width),) * sizes.units)


def mlp_job(sizes: Sizes, method: str, microbatches: int) -> Job:
    """The wide MLP under a method, with N = `microbatches`."""
    return Job(
        network=mlp(sizes),
        task=partial(RandomTask, (sizes.width,), sizes.width, sizes.samples),
        method=METHODS[method],
        stages=sizes.stages,
        microbatches=microbatches,
        steps=sizes.steps(microbatches),
        optimizer=partial(torch.optim.SGD, lr=sizes.lr),
        annealing_steps=sizes.steps(microbatches),
        seed=SEED,
    )


def deep_job(sizes: Sizes, stages: int) -> Job:
    """ResNet-152 of width 8 on 8x8 images, asynchronous, cut in so many stages."""
    n = min(DEEP_N, sizes.deep_microbatches)
    return Job(
        network=resnet(152, classes=10, width=8, stem="cifar", channels=1),
        task=partial(RandomTask, (1, 8, 8), 10, sizes.deep_samples),
        method=METHODS["async"],
        stages=stages,
        microbatches=n,
        steps=sizes.deep_microbatches // n,
        optimizer=partial(torch.optim.SGD, lr=sizes.lr),
        seed=SEED,
    )
