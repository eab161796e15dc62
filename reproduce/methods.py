"""The methods, one row each. A new method is one row here and at most one file beside it.

A row says which schedule a run follows, which weight version each pass reads, and which pieces
(T1, T2, random delays, or your own) it composes. Both engines read the row and nothing else, and
the shared tests run over every row of `METHODS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, Protocol, runtime_checkable

from torch import Tensor

from reproduce.discrepancy import Discrepancy
from reproduce.hogwild import RandomDelays
from reproduce.rescheduling import Rescheduling
from reproduce.stage_context import StageContext


class LearningRate(Protocol):
    """A factor on a stage's learning rate."""

    def factor(self, k: int) -> float:
        """The factor of asynchronous step k (from 0)."""
        ...


class Correction(Protocol):
    """A change to the weights that a stage's backward pass sees."""

    def observe(self, old: Sequence[Tensor], new: Sequence[Tensor]) -> None:
        """Called after every asynchronous update with the stage's weights before and after it."""
        ...

    def backward_weight(self, index: int, weight: Tensor) -> Tensor:
        """What the backward pass uses in place of parameter `index`, now `weight`; not in place."""
        ...

    @property
    def buffers(self) -> list[Tensor]:
        """The tensors it keeps (they are counted, and saved in a checkpoint)."""
        ...


@runtime_checkable
class RecomputeCorrection(Correction, Protocol):
    """A correction that can be had with PipeMare Recompute as well."""

    def recompute_weight(self, index: int, weight: Tensor) -> Tensor:
        """What a recomputation reads in place of parameter `index`, now `weight`; not in place."""
        ...


class Delays(Protocol):
    """Random delays in place of the pipeline's own."""

    bound: int
    """No delay is larger (updates)"""
    mean: Fraction
    """The expected delay: tau of T1 and of the records (updates)"""

    def delay(self, step: int) -> int:
        """How many updates old the weights of `step` are; pure in (seed, stage, step)."""
        ...


@dataclass(frozen=True)
class Method:
    """A training method: a schedule, the versions its passes read, and the pieces it composes."""

    name: str
    summary: str
    schedule: Literal["gpipe", "pipeline"]
    """`gpipe` flushes after every mini-batch; `pipeline` never does"""
    stash: bool = False
    """The backward pass reads the version its forward read (else the current one)"""
    warmup: bool = False
    """T3: the first `sync_steps` steps run on the gpipe schedule"""
    learning_rate: Callable[[StageContext], LearningRate] | None = None
    correction: Callable[[StageContext], Correction] | None = None
    delays: Callable[[StageContext], Delays] | None = None
    lockfree: bool = False
    """Workers share the weights without locks; not deterministic"""

    def __post_init__(self) -> None:
        if self.lockfree and (
            self.schedule != "gpipe"
            or self.stash
            or self.warmup
            or self.correction is not None
            or self.delays is not None
        ):
            raise ValueError(
                f"method {self.name!r}: lock-free workers take whole mini-batches on weights of "
                'their own; give it schedule="gpipe", and of the pieces only a learning_rate'
            )
        if self.delays is not None and self.schedule != "gpipe":
            raise ValueError(
                f"method {self.name!r}: random delays take the place of the pipeline's own; give "
                'it schedule="gpipe"'
            )
        if self.schedule == "gpipe" and self.warmup:
            raise ValueError(
                f"method {self.name!r}: a warm-up on the gpipe schedule is no different from the "
                'rest; give it schedule="pipeline" or leave out warmup=True'
            )
        if self.schedule == "gpipe" and self.stash and self.delays is None:
            raise ValueError(
                f"method {self.name!r}: nothing is stale on the gpipe schedule, so nothing is "
                'stashed; give it schedule="pipeline" or leave out stash=True'
            )

    @property
    def synchronous(self) -> bool:
        """Whether every forward of every step reads the newest weights."""
        return self.schedule == "gpipe" and self.delays is None and not self.lockfree

    @property
    def passes_agree(self) -> bool:
        """Whether a backward pass sees its forward's weights without being handed them."""
        no_update_between = self.schedule == "gpipe" and self.correction is None
        return no_update_between and (self.delays is None or self.stash)


_ROWS = (
    Method("gpipe", "synchronous: flush after every mini-batch", "gpipe"),
    Method("pipedream", "asynchronous, weight stashing", "pipeline", stash=True),
    Method("async", "asynchronous, no technique", "pipeline"),
    Method("t1", "learning-rate rescheduling", "pipeline", learning_rate=Rescheduling),
    Method(
        "t1+t2",
        "rescheduling and discrepancy correction",
        "pipeline",
        learning_rate=Rescheduling,
        correction=Discrepancy,
    ),
    Method(
        "t1+t2+t3",
        "the same after a synchronous warm-up",
        "pipeline",
        warmup=True,
        learning_rate=Rescheduling,
        correction=Discrepancy,
    ),
    Method("hogwild", "random delays", "gpipe", stash=True, delays=RandomDelays),
    Method(
        "hogwild+t1",
        "random delays, rescheduling",
        "gpipe",
        stash=True,
        delays=RandomDelays,
        learning_rate=Rescheduling,
    ),
    Method("hogwild-lockfree", "shared weights, no locks", "gpipe", lockfree=True),
    Method(
        "hogwild-lockfree+t1",
        "shared weights, no locks, rescheduling",
        "gpipe",
        lockfree=True,
        learning_rate=Rescheduling,
    ),
)

METHODS: dict[str, Method] = {row.name: row for row in _ROWS}
