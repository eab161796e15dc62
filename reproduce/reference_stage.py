"""One stage of the reference engine: a history of its weights, and which of them a pass reads."""

from __future__ import annotations

import math

from torch import Tensor
from torch.func import functional_call

from models.unit import Block, Boundary
from reproduce.approximation import ApproximationMeter
from reproduce.delays import DelayMeter
from reproduce.interception import Interception, WeightReader
from reproduce.job import Job
from reproduce.phases import (
    Phase,
    microbatches_to_fill,
    own_schedule,
    random_delays,
    recomputes_exactly,
    recomputes_on_other_weights,
)
from reproduce.update import StageUpdate


class ReferenceStage:
    """Stage i with the versions of its weights that a pass may still read."""

    def __init__(self, job: Job, stage: int, block: Block) -> None:
        self.job, self.method, self.stage = job, job.method, stage
        self.block = block.to(job.device, job.dtype)
        self.names, weights = zip(*self.block.named_parameters(), strict=True)
        self.weights = list(weights)
        self.update = StageUpdate(job, stage, self.weights)
        self.delays = random_delays(job, stage)
        self.depth = 1 + math.ceil(microbatches_to_fill(job, stage) / job.microbatches)
        after = own_schedule(job).gradients_after_recompute(stage)
        self.recompute_depth = 1 + math.ceil(after / job.microbatches)
        self.version = 0
        self.history: dict[int, list[Tensor]] = {}
        self.recompute_history: dict[int, list[Tensor]] = {}
        """What a recomputation reads whose newest weights are of this version"""
        self.remember()
        self.gradients: list[Tensor | None] = [None] * len(self.weights)
        self.filling = microbatches_to_fill(job, stage)
        self.meter = DelayMeter(stage, job.microbatches, self.filling)
        self.approximation = ApproximationMeter(stage)

    def remember(self) -> None:
        """The newest version, from now on; forget those that nothing reads any more."""
        newest = [w.detach().clone() for w in self.weights]
        self.history[self.version] = newest
        self.history.pop(self.version - self.depth, None)
        if recomputes_on_other_weights(self.job, self.stage):
            self.recompute_history[self.version] = [
                self.update.recompute_weight(index, w) for index, w in enumerate(newest)
            ]
            self.recompute_history.pop(self.version - self.recompute_depth, None)

    def forward_version(self, phase: Phase, m: int) -> int:
        if self.delays is None:
            return phase.forward_version(m, self.stage)
        return max(0, self.version - self.delays.delay(self.version))

    def forward(self, phase: Phase, m: int, boundary: Boundary) -> tuple[Boundary, list[Tensor]]:
        """F: the outgoing boundary, and the weights it was computed with (leaves of the graph)."""
        v_fwd = self.forward_version(phase, m)
        v_bkwd = self.backward_version(v_fwd)
        if not phase.warmup:
            self.meter.count(self.version - v_fwd, self.version - v_bkwd)
            if self.job.measure_discrepancy and self.measures(phase, m):
                read = self.reader(v_bkwd)
                u = [read(index) for index in range(len(self.weights))]
                self.approximation.count(self.history[self.version], self.history[v_fwd], u)
        return self.compute(m, boundary, self.history[v_fwd], v_bkwd, {})

    def recompute(self, phase: Phase, m: int, boundary: Boundary) -> tuple[Boundary, list[Tensor]]:
        """R: the same once more, on the weights of its own moment, with the buffers left alone."""
        v_fwd = self.forward_version(phase, m)
        if recomputes_exactly(self.job, phase.schedule):
            weights = self.history[v_fwd]
        else:
            weights = self.recompute_history[phase.recompute_version(m, self.stage)]
        buffers = {name: b.clone() for name, b in self.block.named_buffers()}
        return self.compute(m, boundary, weights, self.backward_version(v_fwd), buffers)

    def measures(self, phase: Phase, m: int) -> bool:
        """Once an update, in steady state."""
        since = m - phase.first_microbatch
        return since >= self.filling and m % self.job.microbatches == 0

    def backward_version(self, v_fwd: int) -> int:
        return v_fwd if self.method.stash else self.version

    def compute(
        self,
        m: int,
        boundary: Boundary,
        weights: list[Tensor],
        v_bkwd: int,
        buffers: dict[str, Tensor],
    ) -> tuple[Boundary, list[Tensor]]:
        leaves = [w.detach().requires_grad_() for w in weights]
        with Interception(leaves).forward(self.reader(v_bkwd)):
            arguments = {"seed": self.job.seed, "microbatch": m}
            named = dict(zip(self.names, leaves, strict=True)) | buffers
            return functional_call(self.block, named, boundary, arguments), leaves

    def reader(self, version: int) -> WeightReader:
        return lambda index: self.update.backward_weight(index, self.history[version][index])

    def accumulate(self, gradients: list[Tensor | None]) -> None:
        for index, gradient in enumerate(gradients):
            total = self.gradients[index]
            if gradient is not None:
                self.gradients[index] = gradient.clone() if total is None else total + gradient

    def step(self, k: int | None) -> None:
        self.update.apply(self.gradients, k)
        self.gradients = [None] * len(self.weights)
        self.version += 1
        self.remember()
