"""One training run as the engines see it, and what comes out of it.

No table, store or command line is known here: the harness turns a cell into a `Job`, either
engine turns a `Job` into an `Outcome`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from data.task import Task
from models.unit import Network
from reproduce.methods import Method


@dataclass(frozen=True)
class Job:
    """Everything that decides the result of a run. Picklable: it travels to the workers."""

    network: Network
    task: Callable[[], Task]
    method: Method
    stages: int
    """P"""
    microbatches: int
    """N"""
    steps: int
    optimizer: Callable[[Iterable[Tensor]], Optimizer]
    scheduler: Callable[[Optimizer], LRScheduler] | None = None
    annealing_steps: int = 0
    """K of T1"""
    decay: float = 0.1
    """D of T2"""
    sync_steps: int = 0
    """W of T3; read only by methods with a warm-up"""
    schedule: Literal["ticks", "1f1b"] = "ticks"
    """What an asynchronous method runs on"""
    seed: int = 0
    eval_every: int = 0
    """Steps between evaluations; 0: only after the last step"""
    divergence_loss: float = 100.0
    """A mini-batch loss above this, or not finite, ends the run as diverged"""
    dtype: torch.dtype = torch.float32
    device: str = "cpu"


@dataclass(frozen=True)
class StageDelay:
    """Mean age in updates of the weights one stage used, counted in steady state.

    None where the run was too short to reach steady state on this stage.
    """

    stage: int
    tau_fwd: Fraction | None
    tau_bkwd: Fraction | None


@dataclass(frozen=True)
class Memory:
    """Bytes over all stages; gradients and activations are peaks."""

    weights: int = 0
    gradients: int = 0
    optimizer: int = 0
    discrepancy: int = 0
    stash: int = 0
    activations_peak: int = 0

    def __add__(self, other: Memory) -> Memory:
        return Memory(*(getattr(self, f) + getattr(other, f) for f in self.__dataclass_fields__))


@dataclass
class Outcome:
    """What a run produced. A diverged run is an outcome, not an error."""

    status: Literal["finished", "diverged"]
    steps: int
    """Optimizer steps done"""
    losses: list[float]
    """Mean training loss of each mini-batch"""
    metrics: list[tuple[int, float]]
    """(steps done, metric on the held-out part)"""
    weights: list[Tensor] = field(repr=False)
    """Every parameter, in unit order, on the CPU"""
    delays: list[StageDelay] = field(repr=False)
    memory: Memory
    utilization: float | None
    """Busy time over wall time, mean over workers; None for the reference engine"""
    drains: int
    """How often the pipeline was flushed"""
    wall_s: float
    diverged_at: int | None = None
    """Step whose loss was the first beyond `divergence_loss`"""
    last_finite_loss: float | None = None

    @property
    def weights_sha256(self) -> str:
        """Digest of all parameters in unit order as contiguous little-endian float32."""
        digest = hashlib.sha256()
        for weight in self.weights:
            array = weight.detach().to("cpu", torch.float32).contiguous().numpy()
            digest.update(array.astype("<f4", copy=False).tobytes())
        return digest.hexdigest()


class Observer:
    """What an engine tells while it runs; the base class listens to nothing."""

    def on_loss(self, step: int, loss: float) -> None:
        """The mini-batch of `step` (from 0) has mean training loss `loss`."""

    def on_metric(self, step: int, value: float) -> None:
        """The weights after `step` updates score `value` on the held-out part."""


class WorkerFailed(RuntimeError):
    """A worker died or raised; the message names the rank and what it was doing."""
