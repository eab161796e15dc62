"""A method of one's own as one more row: whatever it composes, engines agree, or it is refused.

The pieces here are small and extreme: a delay of exactly two updates, a correction of a constant, a
learning rate that falls with k. A combination that an engine cannot run must be refused with a
ValueError, when the row is made or before training starts; silence with two different results is
the one thing that may not be.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest
import torch
from core_cases import Regression, assert_same, dense, make_job, plain_sgd
from torch import Tensor

from reproduce.discrepancy import Discrepancy
from reproduce.engine import run_pipeline
from reproduce.hogwild import RandomDelays
from reproduce.methods import METHODS, Method
from reproduce.reference import run_reference
from reproduce.rescheduling import Rescheduling
from reproduce.stage_context import StageContext


class OneOrTwoUpdates:
    """Delays."""

    def __init__(self, context: StageContext) -> None:
        self.bound, self.mean = 2, Fraction(3, 2)

    def delay(self, step: int) -> int:
        return 1 + step % 2


class Offset:
    """Correction: the backward pass uses w + 1/8, and after the first update w + 1/4."""

    def __init__(self, context: StageContext) -> None:
        self.offsets = [torch.full_like(w, 0.125, requires_grad=False) for w in context.weights]

    def observe(self, old: Sequence[Tensor], new: Sequence[Tensor]) -> None:
        for offset in self.offsets:
            offset.fill_(0.25)

    def backward_weight(self, index: int, weight: Tensor) -> Tensor:
        return weight + self.offsets[index]

    @property
    def buffers(self) -> list[Tensor]:
        return self.offsets


class Falling:
    """Learning rate."""

    def __init__(self, context: StageContext) -> None:
        self.stage = context.stage

    def factor(self, k: int) -> float:
        return 1 / (self.stage + k)


ROWS: dict[str, dict[str, Any]] = {
    "pipeline, stash, warm-up": {"schedule": "pipeline", "stash": True, "warmup": True},
    "pipeline, own learning rate": {"schedule": "pipeline", "learning_rate": Falling},
    "pipeline, own correction": {"schedule": "pipeline", "correction": Offset},
    "pipeline, own correction, warm-up": {
        "schedule": "pipeline", "correction": Offset, "warmup": True,
    },
    "pipeline, T2 without T1": {"schedule": "pipeline", "correction": Discrepancy},
    "pipeline, stash, T1": {"schedule": "pipeline", "stash": True, "learning_rate": Rescheduling},
    "pipeline, stash, T2": {"schedule": "pipeline", "stash": True, "correction": Discrepancy},
    "pipeline, stash, own correction": {
        "schedule": "pipeline", "stash": True, "correction": Offset,
    },
    "pipeline, random delays": {"schedule": "pipeline", "delays": RandomDelays},
    "pipeline, random delays, stash": {
        "schedule": "pipeline", "delays": RandomDelays, "stash": True,
    },
    "pipeline, own delays, stash": {
        "schedule": "pipeline", "delays": OneOrTwoUpdates, "stash": True,
    },
    "gpipe, own learning rate": {"schedule": "gpipe", "learning_rate": Falling},
    "gpipe, own correction": {"schedule": "gpipe", "correction": Offset},
    "gpipe, stash": {"schedule": "gpipe", "stash": True},
    "gpipe, warm-up": {"schedule": "gpipe", "warmup": True},
    "gpipe, own delays, stash": {"schedule": "gpipe", "delays": OneOrTwoUpdates, "stash": True},
    "gpipe, own delays, backward on live weights": {
        "schedule": "gpipe", "delays": OneOrTwoUpdates,
    },
    "gpipe, own delays, own correction": {
        "schedule": "gpipe", "delays": OneOrTwoUpdates, "correction": Offset,
    },
    "gpipe, own delays, stash, own correction": {
        "schedule": "gpipe", "delays": OneOrTwoUpdates, "stash": True, "correction": Offset,
    },
    "gpipe, random delays, T1, T2": {
        "schedule": "gpipe", "delays": RandomDelays, "learning_rate": Rescheduling,
        "correction": Discrepancy,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_engines_agree_or_refuse(name: str) -> None:
    try:
        row = Method("mine", "my own", **ROWS[name])
        job = make_job(dense(5), Regression, row, stages=5, microbatches=2, optimizer=plain_sgd)
        expected = run_reference(job)
    except ValueError:
        return
    assert expected.status == "finished"
    for workers in (1, 2):
        assert_same(run_pipeline(job, workers), expected)


@pytest.mark.parametrize("name", ["pipeline, own learning rate", "pipeline, own correction"])
def test_a_piece_of_ones_own_has_an_effect(name: str) -> None:
    digests = {
        run_reference(make_job(dense(5), Regression, row, stages=5)).weights_sha256
        for row in (Method("mine", "my own", **ROWS[name]), METHODS["async"])
    }
    assert len(digests) == 2


def test_memory_of_a_correction_of_ones_own_is_counted() -> None:
    row = Method("mine", "my own", "pipeline", correction=Offset)
    memory = run_pipeline(make_job(dense(4), Regression, row), 2).memory
    assert memory is not None
    assert memory.discrepancy == memory.weights


def test_names_are_the_keys_of_the_table() -> None:
    assert all(name == row.name and row.summary for name, row in METHODS.items())
    assert [name for name, row in METHODS.items() if row.synchronous] == ["gpipe"]
