"""What a stage keeps of the micro-batches between their forward and backward passes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import NamedTuple

from torch import Tensor
from torch.autograd.graph import GradientEdge

from models.unit import Boundary


class Keep(Enum):
    """What a forward pass keeps of a micro-batch for its backward pass."""

    GRAPH = "its graph, with all activations"
    INPUT = "its input: a segment is recomputed from here"
    NOTHING = "nothing: it is recomputed from an earlier stage's input"


class Graph(NamedTuple):
    """One micro-batch's graph through the stage, cut off at both ends."""

    inputs: list[Tensor]
    """The incoming tensors that want a gradient"""
    weights: Sequence[Tensor]
    """The leaves that the weights' gradients arrive at"""
    outputs: list[GradientEdge]


class Flights:
    """The micro-batches in flight: versions, kept inputs and graphs, and the bytes of the latter.

    Bytes are those of one graph and one input times how many there were: shapes never change.
    They are one stage's: see `Memory` for what their sum over stages means.
    """

    def __init__(self) -> None:
        self.versions: dict[int, int] = {}
        """Micro-batch -> the version that its forward pass read; oldest micro-batch first"""
        self._inputs: dict[int, Boundary] = {}
        self._graphs: dict[int, Graph] = {}
        self.held: set[tuple[int, int]] = set()
        """(graphs, inputs) that were held at once"""
        self._input: dict[int, int] = {}
        self._activations: dict[int, int] = {}

    def keep_input(self, m: int, inputs: Boundary) -> None:
        """For the recomputation of m."""
        self._inputs[m] = inputs
        self._note()
        if not self._input:
            self._input = dict(map(_storage, inputs))

    def take_input(self, m: int) -> Boundary:
        return self._inputs.pop(m)

    def keep_graph(self, m: int, graph: Graph) -> None:
        self._graphs[m] = graph
        self._note()

    def _note(self) -> None:
        self.held.add((len(self._graphs), len(self._inputs)))

    def take_graph(self, m: int) -> tuple[int, Graph]:
        """(the version that the forward pass of m read, its graph), for the backward pass."""
        return self.versions.pop(m), self._graphs.pop(m)

    @property
    def measured(self) -> bool:
        """Whether the bytes of a graph are known."""
        return bool(self._activations)

    def count_activations(self, tensors: Iterable[Tensor]) -> None:
        """Tensors that the graph which is being made holds."""
        self._activations |= dict(map(_storage, tensors))

    @property
    def peak_bytes(self) -> int:
        """Most bytes of activations held at once."""
        graph, kept = sum(self._activations.values()), sum(self._input.values())
        return max((n * graph + k * kept for n, k in self.held), default=0)


def _storage(tensor: Tensor) -> tuple[int, int]:
    """(address, bytes): tensors may share memory."""
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()
