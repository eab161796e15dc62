"""Which weights a backward pass sees, decided in one place.

Autograd keeps, for each operator, the tensors its backward needs. Where such a tensor is a
parameter or a view of one, a note of *which* parameter is kept in its place, and the weights are
looked up when the backward pass runs: activations come from the forward pass, every Jacobian that
involves a parameter uses the weights handed out here, whatever the operator.
"""

from __future__ import annotations

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
    index: int
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class Interception:
    """Makes the hooks under which a stage's forward passes run.

    `weights` are the tensors that the forward computes with (the stage's parameters, or stale
    copies of them).
    """

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self._weights = [(_storage(w), w.storage_offset()) for w in weights]
        self._index = {storage: i for i, (storage, _) in enumerate(self._weights)}

    def forward(
        self, read: WeightReader, on_activation: Callable[[Tensor], None] | None = None
    ) -> saved_tensors_hooks:
        """Context for one forward pass, whose backward pass will use `read(index)`.

        `on_activation` is told of every saved tensor that is not a weight.
        """

        def pack(tensor: Tensor) -> Tensor | _WeightNote:
            index = self._index.get(_storage(tensor))
            if index is None:
                if on_activation is not None:
                    on_activation(tensor)
                return tensor
            offset = tensor.storage_offset() - self._weights[index][1]
            return _WeightNote(read, index, tensor.size(), tensor.stride(), offset)

        return saved_tensors_hooks(pack, _unpack)


def _unpack(packed: Tensor | _WeightNote) -> Tensor:
    if isinstance(packed, Tensor):
        return packed
    weight = packed.read(packed.index).detach()
    return weight.as_strided(packed.size, packed.stride, weight.storage_offset() + packed.offset)
