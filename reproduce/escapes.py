"""Units whose backward pass would use a private copy of a weight are refused by name.

The rule read off autograd's graph: a weight may meet the data only as it is or as a view. Whatever
else is computed from weights alone (a cast under autocast, weight norm, 1 + gamma) is a copy made
in the forward pass, and the backward pass would go on using it whatever weights it is handed. A
custom autograd function may keep a weight where no hook sees it, a recurrent layer hands packed
weights to a fused kernel.

A copy made behind autograd's back, from a detached weight or through numpy, leaves no trace in the
graph and is not seen.

Where a run recomputes, a unit that would not repeat its forward pass is refused, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from models.partition import partition
from models.shapes import boundary_shapes
from models.unit import Boundary, Unit
from reproduce.job import Job, place
from reproduce.repetition import recomputes, unrepeatable
from reproduce.update import check_recompute

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


_OWN_HOOKS = "it hooks what autograd saves"


class EscapesInterception(ValueError):
    """A unit's backward pass would not use the weights it is handed."""


class Unrepeatable(EscapesInterception):
    """A unit's backward pass would not meet the activations of its forward pass: a recomputation
    would make others."""


def check(job: Job) -> None:
    """What both engines ask of a job before they start: a probe of every unit of its network on
    made-up data of the right shapes.

    Raises:
        ValueError: P larger than the number of units, a boundary member that a unit ignores, or a
            recomputation that the schedule or the method cannot do.
        EscapesInterception: a unit whose backward pass would not see the weights it is given, or
            not the activations of its forward pass.
    """
    stages = partition(len(job.network), job.stages)
    repeated = {j for i, units in enumerate(stages, start=1) if recomputes(job, i) for j in units}
    check_recompute(job)
    task = job.task()
    inputs, target = task.microbatch(0)
    inputs = place(inputs, job)
    shapes = boundary_shapes(job.network, inputs)
    differentiable = [False] * len(inputs)
    one_set = job.method.lockfree  # both passes compute with one private copy of the weights
    for index in range(len(job.network)):
        unit = job.network.build(index, job.seed).to(job.device, job.dtype)
        name = f"unit {index} of {job.network.name} ({type(unit).__name__})"
        last = index == len(job.network) - 1
        loss = partial(task.loss, target=target.to(job.device)) if last else None
        probe = Probe(unit, inputs, loss)
        if probe.escape and not (one_set or (job.method.synchronous and job.method.passes_agree)):
            raise EscapesInterception(
                f"{name}: {probe.escape}, so its backward pass would not see the weights method "
                f"{job.method.name!r} gives it; use the weight itself or a view of it, or train "
                "with gpipe"
            )
        ignored = [k for k in probe.ignored if differentiable[k]]
        if ignored and not probe.escape:
            raise ValueError(
                f"{name} ignores member {ignored[0]} of its boundary, so no gradient comes back "
                "for it; leave it out of the boundary"
            )
        reason = unrepeatable(job, index, inputs) if index in repeated else None
        if reason is not None:
            raise Unrepeatable(
                f"{name}: {reason}, so a recomputation (segment = {job.segment}) would not repeat "
                "its forward pass; choose segment = 0"
            )
        inputs = tuple(_made(shape, dtype, job) for shape, dtype, _ in shapes[index])
        differentiable = [spec.differentiable for spec in shapes[index]]


class Probe:
    """One training forward of a unit, and what its graph says."""

    def __init__(
        self, unit: Unit, inputs: Boundary, loss: Callable[[Boundary], Tensor] | None = None
    ) -> None:
        """`loss` follows the last unit."""
        self._inputs = tuple(t.detach().requires_grad_(t.is_floating_point()) for t in inputs)
        self._data = {id(t) for t in self._inputs}
        self._meets_data: dict[Node, bool] = {}
        self._met: set[int] = set()
        self.escape = _bad_weight(unit) or self._run(unit, loss)
        """What would escape interception"""

    @property
    def ignored(self) -> list[int]:
        """Floating-point members of the boundary that the unit does not use."""
        members = enumerate(self._inputs)
        return [k for k, t in members if t.requires_grad and id(t) not in self._met]

    def _run(self, unit: Unit, loss: Callable[[Boundary], Tensor] | None) -> str | None:
        try:
            with (
                torch.random.fork_rng(),
                torch.enable_grad(),
                torch.autograd.graph.disable_saved_tensors_hooks(_OWN_HOOKS),
            ):
                outputs = unit.train()(*self._inputs)
                outputs = outputs if loss is None else (loss(outputs),)
        except RuntimeError as error:
            if _OWN_HOOKS not in str(error):
                raise
            return f"{_OWN_HOOKS} (a checkpoint?)"
        weights = {w.untyped_storage().data_ptr() for w in unit.parameters()}
        for output in outputs:
            self._met.add(id(output))
            if output.untyped_storage().data_ptr() in weights:
                return "it hands a weight on as if it were data"
            escape = self._walk(output.grad_fn) if output.grad_fn is not None else None
            if escape is not None:
                return escape
        return None

    def _walk(self, root: Node) -> str | None:
        """Depth first through the graph; fills in which nodes have data among their ancestors."""
        stack: list[tuple[Node, bool]] = [(root, False)]
        while stack:
            node, done = stack.pop()
            if node in self._meets_data:
                continue
            if isinstance(node, BackwardCFunction):
                return f"{node.name()} is a custom autograd function"
            parents = list(_parents(node))
            if not done:
                stack += [(node, True), *((parent, False) for parent in parents)]
                continue
            name, variable = node.name(), getattr(node, "variable", None)
            if variable is not None:
                self._met.add(id(variable))
                self._meets_data[node] = id(variable) in self._data
                continue
            meets = name in _LOOKUPS or any(self._meets_data[parent] for parent in parents)
            self._meets_data[node] = meets
            if not meets and name not in _VIEWS:
                return f"{name.removesuffix('0').removesuffix('Backward')} makes a copy of a weight"
        return None


def _bad_weight(unit: Unit) -> str | None:
    for module in unit.modules():
        if isinstance(module, nn.RNNBase):
            return f"{type(module).__name__} packs its weights for a fused kernel"
    for name, weight in unit.named_parameters():
        if weight.detach().clone().stride() != weight.stride():
            return f"weight {name} has gaps between its elements, which no copy of it has"
    return None


def _parents(node: Node) -> Iterator[Node]:
    return (parent for parent, _ in node.next_functions if parent is not None)


def _made(shape: tuple[int, ...], dtype: torch.dtype, job: Job) -> Tensor:
    if dtype.is_floating_point:
        return torch.randn(shape, dtype=job.dtype, device=job.device)
    return torch.zeros(shape, dtype=dtype, device=job.device)
