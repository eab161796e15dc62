"""One pipeline stage: it owns its weights, their old versions, delta and what is in flight."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from data.task import Task
from models.unit import Block, Boundary
from reproduce.delays import DelayMeter
from reproduce.engine.flights import Flights, Keep
from reproduce.engine.gradients import accumulate
from reproduce.engine.passes import Passes
from reproduce.engine.report import Snapshot
from reproduce.engine.weights import WeightVersions
from reproduce.job import Job, Memory, evaluation_due
from reproduce.phases import microbatches_to_fill, random_delays
from reproduce.update import StageUpdate


class PipelineStage:
    """Stage i. `task` is given to the last stage, whose outgoing boundary is the loss / N.

    `leaving` says which members of the outgoing boundary want a gradient; a stage that recomputes
    cannot see it.
    """

    def __init__(
        self,
        job: Job,
        stage: int,
        block: Block,
        task: Task | None = None,
        leaving: Sequence[bool] = (),
    ) -> None:
        self.job, self.stage, self._leaving = job, stage, leaving
        self.block = block.to(job.device, job.dtype)
        weights = list(self.block.parameters())
        self.versions = WeightVersions(weights)
        self._update = StageUpdate(job, stage, weights)
        self._delays = random_delays(job, stage)
        self.meter = DelayMeter(stage, job.microbatches, microbatches_to_fill(job, stage))
        self.flights = Flights()
        self._passes = Passes(job, self.block, task, self.versions, self._update, self.flights)
        self._gradients: list[Tensor | None] = [None] * len(weights)
        self._buffers: dict[int, list[Tensor]] = {}
        self._gradient_bytes = 0

    # Forward.

    def forward(
        self, m: int, inputs: Boundary, target: Tensor | None = None, keep: Keep = Keep.GRAPH
    ) -> Boundary:
        """F(m,i): the outgoing boundary. Incoming and outgoing tensors are leaves of a graph, of
        this stage's and of the next one's; the differentiable ones require a gradient."""
        version = self.flights.versions[m] = self._forward_version()
        weights = self._passes.leaves(version)
        if keep is Keep.GRAPH:
            outputs = self._passes.with_graph(m, weights, weights, inputs, target)
        else:
            outputs = self._passes.without_graph(m, weights, inputs, target)
            for t, differentiable in zip(outputs, self._leaving, strict=True):
                t.requires_grad_(differentiable)
        if keep is Keep.INPUT:
            self.flights.keep_input(m, inputs)
        steps, last = divmod(m + 1, self.job.microbatches)
        if last == 0 and steps < self.job.steps and evaluation_due(self.job, steps):
            self._buffers[steps] = [b.clone() for b in self.block.buffers()]
        return outputs

    def recompute(
        self, m: int, inputs: Boundary | None, target: Tensor | None, exact: bool
    ) -> Boundary:
        """R(m,i): the forward pass once more, for its graph. `inputs` come from the recomputation
        of the stage before; None: from what F(m,i) kept. Buffers stay as they are.

        It reads the forward's own version where `exact`, else the newest weights, corrected where
        the method corrects (T2).
        """
        if inputs is None:
            inputs = self.flights.take_input(m)
        leaves = self._passes.leaves(self.flights.versions[m]) if exact else self.versions.live
        weights = leaves if exact else self._passes.corrected()
        buffers = {name: b.clone() for name, b in self.block.named_buffers()}
        return self._passes.with_graph(m, leaves, weights, inputs, target, buffers)

    def _forward_version(self) -> int:
        newest = self.versions.newest
        return newest if self._delays is None else max(0, newest - self._delays.delay(newest))

    # Backward.

    def backward(self, m: int, gradients: Boundary | None, count_delay: bool) -> Boundary:
        """B(m,i): gradients of the incoming boundary. With the N-th of a mini-batch an `update`
        is due, before the stage's next pass.

        `gradients` belong to the outgoing boundary's differentiable members (None: the loss).
        `count_delay` is off in a synchronous warm-up.
        """
        version, graph = self.flights.take_graph(m)
        if count_delay:
            age = self.versions.newest - version
            self.meter.count(age, age if self.job.method.stash else 0)
        found = torch.autograd.grad(
            graph.outputs, [*graph.inputs, *graph.weights], gradients, allow_unused=True
        )
        split = len(graph.inputs)
        accumulate(self._gradients, found[split:])
        return tuple(
            torch.zeros_like(t) if g is None else g
            for t, g in zip(graph.inputs, found[:split], strict=True)
        )

    # Update.

    def update(self, k: int | None) -> None:
        """One optimizer step on the gradients of a mini-batch. `k` counts asynchronous steps; None
        in a synchronous warm-up."""
        self._gradient_bytes = sum(g.nbytes for g in self._gradients if g is not None)
        self._keep_what_is_still_read()
        self._update.apply(self._gradients, k)
        self._gradients = [None] * len(self._gradients)
        self.versions.newest += 1

    def _keep_what_is_still_read(self) -> None:
        """Before an update: which versions the micro-batches in flight, or delays, go back to."""
        newest = self.versions.newest
        if self._delays is not None:
            oldest, live = newest + 1 - self._delays.bound, self._delays.bound > 0
        else:
            read = [*self.flights.versions.values()] if self.job.method.stash else []
            oldest, live = (read[0], read[-1] == newest) if read else (newest + 1, False)
        self.versions.drop_before(oldest)
        if live:
            self.versions.stash()

    # What it hands out.

    def due_snapshot(self) -> Snapshot | None:
        """The stage at its newest version, if that version is to be scored and was not yet."""
        buffers = self._buffers.pop(self.versions.newest, None)
        return self.snapshot(buffers) if buffers is not None else None

    def snapshot(self, buffers: Iterable[Tensor] | None = None) -> Snapshot:
        """The stage as it stands, with these buffers or its own."""
        buffers = self.block.buffers() if buffers is None else buffers
        weights = [w.detach().cpu().numpy().copy() for w in self.versions.live]
        return Snapshot(
            self.versions.newest, self.stage, weights, [b.cpu().numpy() for b in buffers]
        )

    def memory(self) -> Memory:
        """Bytes this stage holds; gradients, stash and activations at their peak."""
        return Memory(
            weights=sum(w.nbytes for w in self.versions.live),
            gradients=self._gradient_bytes,
            optimizer=self._update.optimizer_bytes(),
            discrepancy=self._update.correction_bytes(),
            stash=self.versions.peak_bytes,
            activations_peak=self.flights.peak_bytes,
        )
