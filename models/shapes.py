"""What crosses each boundary, found without computing anything."""

from __future__ import annotations

from typing import NamedTuple

import torch

from models.unit import Boundary, Network


class TensorSpec(NamedTuple):
    """One member of a boundary."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    differentiable: bool
    """Whether a gradient comes back for it"""

    @property
    def nbytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize


def boundary_shapes(
    network: Network, inputs: Boundary, dtype: torch.dtype = torch.float32
) -> list[list[TensorSpec]]:
    """The boundary that leaves each unit in training, for a network of weights in `dtype`.

    Runs on the meta device: no weight is allocated and no random number drawn. Floating-point
    `inputs` are taken to be in `dtype`, too.

    Raises what the units raise, such as for a sentence that is too long.
    """
    boundary: Boundary = tuple(
        t.to("meta", dtype if t.is_floating_point() else t.dtype) for t in inputs
    )
    specs = []
    with torch.device("meta"), torch.enable_grad():
        for blueprint in network.blueprints:
            boundary = blueprint().to(dtype)(*boundary)
            specs.append([TensorSpec(tuple(t.shape), t.dtype, t.requires_grad) for t in boundary])
    return specs
