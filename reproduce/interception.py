"""Which weights a backward pass sees, decided in one place.

Autograd keeps, for each operator, the tensors its backward needs. Where such a tensor is a
parameter or a view of one, a note of *which* parameter is kept in its place, and the weights are
looked up when the backward pass runs: activations come from the forward pass, every Jacobian that
involves a parameter uses the weights handed out here, whatever the operator.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

WeightReader = Callable[[int], Tensor]
"""Parameter index -> the weights a backward pass uses for it, laid out as the parameter is."""


class _WeightNote(NamedTuple):
    """Stands for a parameter, or a view of one, among autograd's saved tensors."""

    read: WeightReader
    weight: int
    size: Sequence[int | torch.SymInt]
    stride: Sequence[int | torch.SymInt]
    offset: int | torch.SymInt


class Interception:
    """Makes the hooks under which a stage's forward passes run.

    `weights` are the tensors that the forward computes with (the stage's parameters, or stale
    copies of them). A saved tensor is known as one of them, or a view, by where its data lies.
    """

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self._weights = sorted((w.data_ptr(), index) for index, w in enumerate(weights))
        self._starts = [start for start, _ in self._weights]
        self._ends = [start + weights[index].nbytes for start, index in self._weights]
        self._offsets = [weights[index].storage_offset() for _, index in self._weights]

    def forward(
        self, read: WeightReader, on_activation: Callable[[Tensor], None] | None = None
    ) -> saved_tensors_hooks:
        """Context for one forward pass, whose backward pass will use `read(index)`.

        `on_activation` is told of every saved tensor that is not a weight.
        """

        def pack(tensor: Tensor) -> Tensor | _WeightNote:
            start = tensor.data_ptr()
            at = bisect_right(self._starts, start) - 1
            if at < 0 or start >= self._ends[at]:
                if on_activation is not None:
                    on_activation(tensor)
                return tensor
            offset = tensor.storage_offset() - self._offsets[at]
            index = self._weights[at][1]
            return _WeightNote(read, index, tensor.size(), tensor.stride(), offset)

        return saved_tensors_hooks(pack, _unpack)


def _unpack(packed: Tensor | _WeightNote) -> Tensor:
    if isinstance(packed, Tensor):
        return packed
    weight = packed.read(packed.weight).detach()
    return weight.as_strided(packed.size, packed.stride, weight.storage_offset() + packed.offset)
