"""A network is an ordered list of weight units; what crosses a boundary is a tuple of tensors.

One weighted layer is one unit, together with the parameter-free operations that follow it, so a
stage is a contiguous run of units and nothing else needs to know what network it belongs to.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

Boundary = tuple[Tensor, ...]


class Unit(nn.Module):
    """One weighted layer and the parameter-free operations that follow it.

    ``forward(*boundary)`` takes the tensors of the incoming boundary and returns the outgoing one,
    always as a tuple. Floating-point members carry gradients; integer and boolean members (tokens,
    masks) are handed on untouched. A unit never changes a tensor in place.
    """

    dropout_p: float = 0.0
    """Probability that the unit's own forward hands to a functional dropout or attention"""

    @cached_property
    def stochastic(self) -> bool:
        """Whether a training forward draws random numbers (an active dropout). Looked up once."""
        return self.dropout_p > 0 or any(
            isinstance(m, _DropoutNd) and m.p > 0 for m in self.modules()
        )


Blueprint = Callable[[], Unit]


class Block(nn.Module):
    """A contiguous run of a network's units as one module: what a stage computes."""

    def __init__(self, units: Sequence[Unit], first: int) -> None:
        """`first` is the index in the network of the first of the `units`."""
        super().__init__()
        self.units = nn.ModuleList(units)
        self._indexed = list(enumerate(units, first))

    def forward(self, *boundary: Tensor, seed: int, microbatch: int) -> Boundary:
        return run_units(self._indexed, boundary, seed, microbatch)


@dataclass(frozen=True)
class Network:
    """A network by its blueprints: `blueprints[j]()` makes unit j, whatever machine it lives on.

    Blueprints are picklable (`functools.partial` of a `Unit` class), so that a worker builds its
    own units only.
    """

    name: str
    blueprints: tuple[Blueprint, ...]

    def __len__(self) -> int:
        return len(self.blueprints)

    def build(self, index: int, seed: int) -> Unit:
        """Unit `index` with initial weights that depend on (seed, index) alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(key(seed, "init", index))
            return self.blueprints[index]()

    def block(self, units: range, seed: int) -> Block:
        """The stage made of these units."""
        return Block([self.build(index, seed) for index in units], units.start)


def key(seed: int, purpose: str, *numbers: int) -> int:
    """A 63-bit seed for one purpose: equal arguments, equal randomness, on any worker."""
    text = ":".join([str(seed), purpose, *map(str, numbers)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def run_units(
    units: Sequence[tuple[int, Unit]], boundary: Boundary, seed: int, microbatch: int
) -> Boundary:
    """Forward `boundary` through (index, unit) pairs.

    Dropout is keyed by (seed, unit, microbatch).
    """
    for index, unit in units:
        if unit.training and unit.stochastic:
            _seed(key(seed, "dropout", index, microbatch))
        boundary = unit(*boundary)
    return boundary


def _seed(number: int) -> None:
    """What torch.manual_seed does, less the stack trace that it keeps at every call for devices
    that were never used."""
    torch.default_generator.manual_seed(number)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(number)
