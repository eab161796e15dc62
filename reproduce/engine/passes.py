"""A stage's block on whatever weights a pass reads, with a graph or without."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.graph import get_gradient_edge
from torch.func import functional_call

from data.task import Task
from models.unit import Block, Boundary
from reproduce.engine.flights import Flights, Graph
from reproduce.engine.weights import WeightVersions
from reproduce.interception import Interception, WeightReader
from reproduce.job import Job
from reproduce.update import StageUpdate


class _StandIn(Function):
    """`stand_in` in place of a weight that takes the gradient; the graph holds on to neither."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, stand_in: Tensor) -> Tensor:
        return stand_in

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


class Passes:
    """Forward passes of one stage; with a task, the loss / N follows the block."""

    def __init__(
        self,
        job: Job,
        block: Block,
        task: Task | None,
        versions: WeightVersions,
        update: StageUpdate,
        flights: Flights,
    ) -> None:
        self.job, self.block, self.task = job, block, task
        self.versions, self.update, self.flights = versions, update, flights
        self._names = [name for name, _ in block.named_parameters()]
        self._interception = Interception(versions.live)
        self._hooks_on_live_weights = self._interception.forward(self._reader(0))

    def leaves(self, version: int) -> Sequence[Tensor]:
        """The weights of this version as leaves of a graph."""
        if version == self.versions.newest:
            return self.versions.live
        return [w.detach().requires_grad_() for w in self.versions[version]]

    def corrected(self) -> Sequence[Tensor]:
        """What a recomputation reads in place of the newest weights, which get the gradients."""
        live = self.versions.live
        if self.update.correction is None:
            return live
        correct = self.update.recompute_weight
        return [_StandIn.apply(w, correct(index, w.detach())) for index, w in enumerate(live)]

    def without_graph(
        self, m: int, weights: Sequence[Tensor], inputs: Boundary, target: Tensor | None
    ) -> Boundary:
        with torch.no_grad():
            return tuple(t.detach() for t in self._compute(m, weights, inputs, target, {}))

    def with_graph(
        self,
        m: int,
        leaves: Sequence[Tensor],
        weights: Sequence[Tensor],
        inputs: Boundary,
        target: Tensor | None,
        buffers: dict[str, Tensor] | None = None,
    ) -> Boundary:
        """The outgoing boundary, computed with `weights`, whose gradients arrive at `leaves`. The
        graph of m is kept in `flights`, where the version that m's forward read already stands."""
        with self._hooks(self.flights.versions[m], weights, inputs):
            outputs = self._compute(m, weights, inputs, target, buffers or {})
        edges = [get_gradient_edge(t) for t in outputs if t.requires_grad]
        wanting = [t for t in inputs if t.requires_grad]
        self.flights.keep_graph(m, Graph(wanting, leaves, edges))
        return tuple(t.detach().requires_grad_(t.requires_grad) for t in outputs)

    def _compute(
        self,
        m: int,
        weights: Sequence[Tensor],
        inputs: Boundary,
        target: Tensor | None,
        buffers: dict[str, Tensor],
    ) -> Boundary:
        """The block on these weights and buffers; its own need no detour."""
        arguments = {"seed": self.job.seed, "microbatch": m}
        instead = dict(buffers)
        if weights is not self.versions.live:
            instead |= zip(self._names, weights, strict=True)
        outputs: Boundary
        if instead:
            outputs = functional_call(self.block, instead, inputs, arguments)
        else:
            outputs = self.block(*inputs, **arguments)
        if self.task is not None and target is not None:
            outputs = (self.task.loss(outputs, target) / self.job.microbatches,)
        return outputs

    def _hooks(
        self, version: int, weights: Sequence[Tensor], inputs: Boundary
    ) -> AbstractContextManager[object]:
        """What decides the weights of this micro-batch's backward pass.

        Activations are measured on the first graph: the shapes never change.
        """
        measured, method = self.flights.measured, self.job.method
        if measured and method.passes_agree:
            return nullcontext()
        live = weights is self.versions.live
        if measured and live and not method.stash:
            return self._hooks_on_live_weights
        interception = self._interception if live else Interception(weights)
        if measured:
            return interception.forward(self._reader(version))
        self.flights.count_activations(inputs)
        return interception.forward(
            self._reader(version), lambda tensor: self.flights.count_activations((tensor,))
        )

    def _reader(self, version: int) -> WeightReader:
        correct, versions = self.update.backward_weight, self.versions
        if self.job.method.stash:
            return lambda index: correct(index, versions[version][index])
        return lambda index: correct(index, versions.live[index])
