"""What a task is to the rest: (seed, step) -> micro-batches, a loss, and a metric."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from torch import Tensor

Boundary = tuple[Tensor, ...]


class Microbatch(NamedTuple):
    """What stage 1 reads (a boundary tuple) and what the last stage compares its output with."""

    inputs: Boundary
    target: Tensor


class Final(NamedTuple):
    """What a task says once about the weights that a finished run ends with."""

    scores: dict[str, float]
    """Name -> value, beside the metric"""
    texts: dict[str, str]
    """File name -> content, kept with the run"""


class Task(Protocol):
    """A data set with its loss and metric, as the engines and the harness see it.

    An instance belongs to one run: the seed, the mini-batch size and the number of micro-batches
    are fixed when it is made. `microbatch` is a pure function of those and of `m`, so any worker
    may ask for any of them in any order. Shapes are the same for every micro-batch.
    """

    name: str
    metric: str
    """Name of the metric `evaluate` returns (higher is better): `accuracy` or `bleu`."""

    def microbatch(self, m: int) -> Microbatch:
        """Micro-batch `m`, counted from the start of training; it belongs to step m // N."""
        ...

    def loss(self, outputs: Boundary, target: Tensor) -> Tensor:
        """Mean loss over the micro-batch (scalar)."""
        ...

    def evaluate(self, forward: Callable[[Boundary], Boundary]) -> float:
        """The metric on the held-out part, in percent; `forward` is the network in eval mode."""
        ...

    def final(self, forward: Callable[[Boundary], Boundary]) -> Final:
        """The final scores, asked for once, right after `evaluate` of the same weights.

        A task that inherits from this class and has nothing to add need not define it.
        """
        return Final({}, {})

    def resolution(self) -> float:
        """The smallest step the metric can make on the held-out part, in percent."""
        ...
