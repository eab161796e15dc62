"""One training run as the engines see it, and what comes out of it.

No table, store or command line is known here: the harness turns a cell into a `Job`, either
engine turns a `Job` into an `Outcome`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from data.task import Task
from models.unit import Boundary, Network
from reproduce.methods import Method
from reproduce.trace import TraceEvent


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
    t1_exponent: float = 1.0
    t1_floor: float = 1.0
    """T1's extension, see `rescheduling`; off at 1 and 1"""
    sync_steps: int = 0
    """W of T3; read only by methods with a warm-up"""
    schedule: Literal["ticks", "1f1b"] = "ticks"
    """What an asynchronous method runs on"""
    segment: int = 0
    """S, stages a segment of PipeMare Recompute; 0: activations are kept"""
    measure_discrepancy: bool = False
    """Compare what backward passes read with what their forward passes read (reference only)"""
    seed: int = 0
    eval_every: int = 0
    """Steps between evaluations; 0: only after the last step"""
    divergence_loss: float = 100.0
    """A mini-batch loss above this, or not finite, ends the run as diverged"""
    lockfree_workers: int = 8
    """K of a lock-free method: processes that share the weights"""
    trace: bool = False
    """Whether the pipeline engine writes down when it did what"""
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
class StageApproximation:
    """How well one stage's backward passes knew their forward weights, in steady state.

    With w the newest weights, w_fwd those that the forward pass read and u those that the backward
    pass reads (norms over the whole stage): without T2 the ratio is 1, under stashing 0. None where
    no such pass was stale.
    """

    stage: int
    ratio: float | None
    """Mean of |u - w_fwd| / |w - w_fwd|"""
    distance: float | None
    """Mean of |w - w_fwd| / |w_fwd|"""
    count: int
    """Optimizer steps in the means"""


@dataclass(frozen=True)
class Memory:
    """Bytes over all stages; gradients, stash and activations are peaks.

    Each stage is counted at its own peak, so the sum is what one device a stage holds in all. A
    worker of several stages holds less where they do not peak together: with a recomputation in a
    synchronous phase, the graphs of one segment at a time in place of those of all its stages.
    Counted nowhere are tensors that live within one pass: what T2 makes of one stage's weights for
    a recomputation, or of one weight for a Jacobian.
    """

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

    status: Literal["finished", "diverged"] = "finished"
    losses: list[float] = field(default_factory=list)
    """Mean training loss of each mini-batch"""
    metrics: list[tuple[int, float]] = field(default_factory=list)
    """(steps done, metric on the held-out part)"""
    scores: dict[str, float] = field(default_factory=dict)
    """The task's final scores, by name; empty unless the run finished"""
    texts: dict[str, str] = field(default_factory=dict, repr=False)
    """What else is kept of the run: file name -> content"""
    weights: list[Tensor] = field(default_factory=list, repr=False)
    """Every parameter, in unit order, on the CPU"""
    delays: list[StageDelay] = field(default_factory=list, repr=False)
    approximation: list[StageApproximation] = field(default_factory=list, repr=False)
    """Empty unless it was measured"""
    drawn_delays: dict[int, int] = field(default_factory=dict, repr=False)
    """Delay -> how many updates had it; lock-free methods only"""
    trace: list[TraceEvent] = field(default_factory=list, repr=False)
    """What the workers of the pipeline engine did when, if `Job.trace` asked for it"""
    memory: Memory | None = None
    """None for the reference engine, which keeps a history that no method needs"""
    utilization: float | None = None
    """Busy time over wall time, mean over workers (lock-free: over the run's `loop_s`, so that
    waiting for the last worker counts); None for the reference engine"""
    drains: int = 0
    """How often the pipeline was flushed"""
    wall_s: float = 0.0
    """Seconds in all, with the start of the processes and the building of the stages"""
    loop_s: float = 0.0
    """Seconds from the first pass to the last, the longest over workers"""

    @property
    def steps(self) -> int:
        """Optimizer steps done."""
        return len(self.losses)

    @property
    def diverged_at(self) -> int | None:
        """The step (from 0) whose loss was the first beyond `divergence_loss`."""
        return self.steps - 1 if self.status == "diverged" else None

    @property
    def last_finite_loss(self) -> float | None:
        return next((loss for loss in reversed(self.losses) if math.isfinite(loss)), None)

    @property
    def weights_sha256(self) -> str:
        """Digest of all parameters in unit order as contiguous little-endian float32."""
        digest = hashlib.sha256()
        for weight in self.weights:
            array = weight.detach().to("cpu", torch.float32).contiguous().numpy()
            digest.update(array.astype("<f4", copy=False).tobytes())
        return digest.hexdigest()


def place(boundary: Boundary, job: Job) -> Boundary:
    """The boundary on the job's device, its floating-point members in the job's precision."""
    return tuple(
        t.to(job.device, job.dtype if t.is_floating_point() else t.dtype, non_blocking=True)
        for t in boundary
    )


def evaluation_due(job: Job, steps_done: int) -> bool:
    """Whether the weights after so many updates are to be scored."""
    at_interval = job.eval_every > 0 and steps_done % job.eval_every == 0
    return at_interval or steps_done == job.steps


class Observer:
    """What an engine tells while it runs; the base class listens to nothing."""

    def on_loss(self, step: int, loss: float) -> None:
        """The mini-batch of `step` (from 0) has mean training loss `loss`."""

    def on_metric(self, step: int, value: float) -> None:
        """The weights after `step` updates score `value` on the held-out part."""


class WorkerFailed(RuntimeError):
    """A worker died or raised; the message names the rank and what it was doing."""
