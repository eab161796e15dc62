"""One pipeline stage: it owns its weights, their old versions, delta and what is in flight."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import functional_call

from data.task import Task
from models.unit import Block, Boundary
from reproduce.delays import DelayMeter
from reproduce.engine.report import Snapshot
from reproduce.engine.weights import WeightVersions
from reproduce.interception import Interception, WeightReader
from reproduce.job import Job, Memory, evaluation_due
from reproduce.phases import microbatches_to_fill, random_delays
from reproduce.update import StageUpdate


class Flight(NamedTuple):
    """What a stage keeps of a micro-batch between its forward and its backward pass."""

    version: int
    inputs: list[Tensor]
    """The incoming tensors that want a gradient"""
    weights: Sequence[Tensor]
    """The leaves that the weights' gradients arrive at"""
    outputs: list[GradientEdge]


class PipelineStage:
    """Stage i. `task` is given to the last stage, whose outgoing boundary is the loss / N."""

    def __init__(self, job: Job, stage: int, block: Block, task: Task | None = None) -> None:
        self.job, self.stage, self.task = job, stage, task
        self.block = block.to(job.device, job.dtype)
        names, weights = zip(*self.block.named_parameters(), strict=True)
        self._names = names
        self.versions = WeightVersions(weights)
        self._update = StageUpdate(job, stage, weights)
        self._delays = random_delays(job, stage)
        self.meter = DelayMeter(stage, job.microbatches, microbatches_to_fill(job, stage))
        self._interception = Interception(weights)
        self._hooks_on_live_weights = self._interception.forward(self._reader(0))
        self._flights: dict[int, Flight] = {}
        self._gradients: list[Tensor | None] = [None] * len(weights)
        self._buffers: dict[int, list[Tensor]] = {}
        self._activations: dict[int, int] = {}
        self._most_flights = self._gradient_bytes = 0

    # Forward.

    def forward(self, m: int, inputs: Boundary, target: Tensor | None = None) -> Boundary:
        """F(m,i): the outgoing boundary. Incoming and outgoing tensors are leaves of a graph, of
        this stage's and of the next one's; the differentiable ones require a gradient."""
        version = self._forward_version()
        leaves = self._leaves(version)
        with self._hooks(version, leaves, inputs):
            outputs = self._compute(leaves, m, inputs)
            if self.task is not None and target is not None:
                outputs = (self.task.loss(outputs, target) / self.job.microbatches,)
        edges = [get_gradient_edge(t) for t in outputs if t.requires_grad]
        self._flights[m] = Flight(version, [t for t in inputs if t.requires_grad], leaves, edges)
        self._most_flights = max(self._most_flights, len(self._flights))
        steps, last = divmod(m + 1, self.job.microbatches)
        if last == 0 and steps < self.job.steps and evaluation_due(self.job, steps):
            self._buffers[steps] = [b.clone() for b in self.block.buffers()]
        return tuple(t.detach().requires_grad_(t.requires_grad) for t in outputs)

    def _forward_version(self) -> int:
        newest = self.versions.newest
        return newest if self._delays is None else max(0, newest - self._delays.delay(newest))

    def _leaves(self, version: int) -> Sequence[Tensor]:
        """The weights of this version as leaves of a graph."""
        if version == self.versions.newest:
            return self.versions.live
        return [w.detach().requires_grad_() for w in self.versions[version]]

    def _compute(self, leaves: Sequence[Tensor], m: int, inputs: Boundary) -> Boundary:
        """The block on these weights; the live ones need no detour."""
        arguments = {"seed": self.job.seed, "microbatch": m}
        outputs: Boundary
        if leaves is self.versions.live:
            outputs = self.block(*inputs, **arguments)
        else:
            named = dict(zip(self._names, leaves, strict=True))
            outputs = functional_call(self.block, named, inputs, arguments)
        return outputs

    def _hooks(
        self, version: int, leaves: Sequence[Tensor], inputs: Boundary
    ) -> AbstractContextManager[object]:
        """What decides the weights of this micro-batch's backward pass.

        Activations are measured on the first micro-batch: the shapes never change.
        """
        measured, method = bool(self._activations), self.job.method
        if measured and method.passes_agree:
            return nullcontext()
        live = leaves is self.versions.live
        if measured and live and not method.stash:
            return self._hooks_on_live_weights
        interception = self._interception if live else Interception(leaves)
        if measured:
            return interception.forward(self._reader(version))
        for tensor in inputs:
            self._count_activation(tensor)
        return interception.forward(self._reader(version), self._count_activation)

    def _reader(self, version: int) -> WeightReader:
        correct, versions = self._update.backward_weight, self.versions
        if self.job.method.stash:
            return lambda index: correct(index, versions[version][index])
        return lambda index: correct(index, versions.live[index])

    def _count_activation(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        self._activations[storage.data_ptr()] = storage.nbytes()

    # Backward.

    def backward(self, m: int, gradients: Boundary | None, count_delay: bool) -> Boundary:
        """B(m,i): gradients of the incoming boundary. With the N-th of a mini-batch an `update`
        is due, before the stage's next pass.

        `gradients` belong to the outgoing boundary's differentiable members (None: the loss).
        `count_delay` is off in a synchronous warm-up.
        """
        flight = self._flights.pop(m)
        if count_delay:
            age = self.versions.newest - flight.version
            self.meter.count(age, age if self.job.method.stash else 0)
        found = torch.autograd.grad(
            flight.outputs, [*flight.inputs, *flight.weights], gradients, allow_unused=True
        )
        split = len(flight.inputs)
        self._accumulate(found[split:])
        return tuple(
            torch.zeros_like(t) if g is None else g
            for t, g in zip(flight.inputs, found[:split], strict=True)
        )

    def _accumulate(self, found: Sequence[Tensor | None]) -> None:
        """In memory of their own: autograd may hand out one tensor for a weight's gradient and
        for another weight's, or for the one that goes upstream."""
        for index, gradient in enumerate(found):
            total = self._gradients[index]
            if gradient is not None:
                self._gradients[index] = gradient.clone() if total is None else total.add_(gradient)

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
            read = [f.version for f in self._flights.values()] if self.job.method.stash else []
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
            activations_peak=self._most_flights * sum(self._activations.values()),
        )
