"""Units whose backward pass would use a private copy of a weight are refused by name.

The rule read off autograd's graph: a weight may meet the data only as it is or as a view. Whatever
else is computed from weights alone (a cast under autocast, weight norm, 1 + gamma) is a copy made
in the forward pass, and the backward pass would go on using it whatever weights it is handed. A
custom autograd function may keep a weight where no hook sees it, a recurrent layer hands packed
weights to a fused kernel.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from models.partition import partition
from models.shapes import boundary_shapes
from models.unit import Boundary, Unit
from reproduce.job import Job, place

_VIEWS = {
    f"{name}Backward{n}"
    for name in (
        "T", "View", "Transpose", "Permute", "Slice", "Select", "Split", "SplitWithSizes", "Chunk",
        "Unbind", "Unsqueeze", "Squeeze", "Expand", "AsStrided", "Alias", "Narrow", "Unfold",
        "ReshapeAlias", "SwapAxes", "Movedim",
    )
    for n in (0, 1, 2)
}  # fmt: skip
_LOOKUPS = {"EmbeddingBackward0"}
"""Where integer data meets a weight, unseen by the graph"""


class EscapesInterception(ValueError):
    """A unit's backward pass would not use the weights it is handed."""


def check(job: Job) -> None:
    """What both engines ask of a job before they start.

    Raises:
        ValueError: P larger than the number of units.
        EscapesInterception: a unit whose backward pass would not see the weights it is given.
    """
    partition(len(job.network), job.stages)
    if not job.method.synchronous:
        refuse_escapes(job)


def refuse_escapes(job: Job) -> None:
    """Probe every unit of the job's network on made-up data of the right shapes.

    Raises:
        EscapesInterception: naming the unit and the operation.
    """
    inputs = place(job.task().microbatch(0).inputs, job)
    shapes = boundary_shapes(job.network, inputs)
    for index in range(len(job.network)):
        unit = job.network.build(index, job.seed).to(job.device, job.dtype)
        escape = find_escape(unit, inputs)
        if escape:
            raise EscapesInterception(
                f"unit {index} of {job.network.name} ({type(unit).__name__}): {escape}, so its "
                f"backward pass would not see the weights method {job.method.name!r} gives it; "
                "use the weight itself or a view of it, or train with gpipe"
            )
        inputs = tuple(_made(shape, dtype, job) for shape, dtype, _ in shapes[index])


def find_escape(unit: Unit, inputs: Boundary) -> str | None:
    """What in the unit would escape interception, or None. Runs one training forward."""
    for module in unit.modules():
        if isinstance(module, nn.RNNBase):
            return f"{type(module).__name__} packs its weights for a fused kernel"
    inputs = tuple(t.detach().requires_grad_(t.is_floating_point()) for t in inputs)
    with torch.random.fork_rng(), torch.enable_grad():
        outputs = unit.train()(*inputs)
    seen: dict[Node, bool] = {}
    data = {id(t) for t in inputs}
    for output in outputs:
        if output.grad_fn is not None:
            escape = _walk(output.grad_fn, data, seen)
            if escape:
                return escape
    return None


def _walk(root: Node, data: set[int], meets_data: dict[Node, bool]) -> str | None:
    """Depth first through the graph; fills in which nodes have data among their ancestors."""
    stack: list[tuple[Node, bool]] = [(root, False)]
    while stack:
        node, done = stack.pop()
        if node in meets_data:
            continue
        if isinstance(node, BackwardCFunction):
            return f"{node.name()} is a custom autograd function"
        parents = list(_parents(node))
        if not done:
            stack += [(node, True), *((parent, False) for parent in parents)]
            continue
        name = node.name()
        variable = getattr(node, "variable", None)
        meets_data[node] = (
            id(variable) in data if variable is not None
            else name in _LOOKUPS or any(meets_data[parent] for parent in parents)
        )  # fmt: skip
        if not meets_data[node] and variable is None and name not in _VIEWS:
            return f"{name.removesuffix('0').removesuffix('Backward')} makes a copy of a weight"
    return None


def _parents(node: Node) -> Iterator[Node]:
    return (parent for parent, _ in node.next_functions if parent is not None)


def _made(shape: tuple[int, ...], dtype: torch.dtype, job: Job) -> Tensor:
    if dtype.is_floating_point:
        return torch.randn(shape, dtype=job.dtype, device=job.device)
    return torch.zeros(shape, dtype=dtype, device=job.device)
