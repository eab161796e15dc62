"""What the workers of a lock-free run share: weights, buffers, optimizer state and counts.

All of it lies in one block of shared memory, whose layout both sides work out from the job, so one
handle is all that travels. Nothing here is guarded by a lock: weights are read and written as they
are, and every count has one writer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from models.partition import partition
from models.unit import Block
from reproduce.engine.report import Snapshot
from reproduce.job import Job, Memory

_ALIGNMENT = 64


class SharedStage:
    """One stage's tensors in shared memory, in the order that `like` gives them."""

    def __init__(self, stage: int, block: Block, optimizer: Callable[..., Optimizer]) -> None:
        self.stage, self.block = stage, block
        """The block is this process's own; only its shapes and initial values are read here"""
        self.weights = list(block.parameters())
        self.buffers = list(block.buffers())
        self.state = initial_state(optimizer, self.weights)
        """Of each weight, what the optimizer keeps"""

    @property
    def tensors(self) -> list[Tensor]:
        state = [tensor for of_weight in self.state for tensor in of_weight.values()]
        return [*self.weights, *self.buffers, *state]

    def move(self, places: Iterator[Tensor]) -> None:
        """Take these places in shared memory for the tensors, in their order."""
        self.weights = [nn.Parameter(next(places)) for _ in self.weights]
        self.buffers = [next(places) for _ in self.buffers]
        self.state = [{key: next(places) for key in of_weight} for of_weight in self.state]

    def snapshot(self, steps: int) -> Snapshot:
        """The stage as it is now, called version `steps`; others may be writing it meanwhile."""
        weights = [w.detach().numpy().copy() for w in self.weights]
        return Snapshot(steps, self.stage, weights, [b.numpy().copy() for b in self.buffers])


class Shared:
    """The shared memory of a run of `job`, in the process that makes it and in the workers."""

    def __init__(self, job: Job, memory: Tensor | None = None) -> None:
        """`memory` is what another process made; None makes it, with the run's initial values.

        Raises:
            ValueError: an optimizer whose state cannot be shared (see `initial_state`).
        """
        workers = job.lockfree_workers
        units = partition(len(job.network), job.stages)
        blocks = [job.network.block(mine, job.seed).to(job.dtype) for mine in units]
        self.stages = [SharedStage(i, b, job.optimizer) for i, b in enumerate(blocks, start=1)]
        counts = torch.zeros(2 * workers, dtype=torch.int64)
        initial = [counts, *(tensor for stage in self.stages for tensor in stage.tensors)]
        self.memory = _block(initial) if memory is None else memory
        places = _places(self.memory, initial)
        if memory is None:
            for place, tensor in zip(_places(self.memory, initial), initial, strict=True):
                place.copy_(tensor.detach())
        numbers = next(places).numpy()
        self._done, self._over = numbers[:workers], numbers[workers:]
        for stage in self.stages:
            stage.move(places)

    def bytes(self) -> Memory:
        """What is held once, however many workers share it."""
        weights = (w.nbytes for stage in self.stages for w in stage.weights)
        state = (t.nbytes for stage in self.stages for each in stage.state for t in each.values())
        return Memory(weights=sum(weights), optimizer=sum(state))

    def updates(self) -> int:
        """Updates done by all workers."""
        return int(self._done.sum())

    def updates_by_others(self, rank: int) -> int:
        return int(self._done.sum() - self._done[rank])

    def count_update(self, rank: int) -> None:
        self._done[rank] += 1

    def end(self, rank: int) -> None:
        """Worker `rank` saw the run diverge."""
        self._over[rank] = 1

    @property
    def over(self) -> bool:
        return bool(self._over.any())


def initial_state(
    optimizer: Callable[[Iterable[Tensor]], Optimizer], weights: Sequence[Tensor]
) -> list[dict[str, Tensor]]:
    """What an optimizer keeps of each weight before its first update: zeros, so that it can be
    shared before any worker steps. (SGD starts a momentum from its first gradient instead, which
    is the same without dampening.)

    Found by steps of no effect on zeros.

    Raises:
        ValueError: the state starts from something else, or is replaced instead of written.
            Dampening spares the first gradient, and zeros cannot say which one that is.
    """
    zeros = [torch.zeros_like(weight, requires_grad=True) for weight in weights]
    for weight in zeros:
        weight.grad = torch.zeros_like(weight)
    trial = optimizer(zeros)
    if any(group.get("dampening") for group in trial.param_groups):
        raise ValueError(
            f"optimizer: {type(trial).__name__} with dampening, which lock-free workers cannot "
            "share; choose dampening = 0"
        )
    trial.step()
    found = [dict(trial.state.get(weight, {})) for weight in zeros]
    trial.step()
    for weight, state in zip(zeros, found, strict=True):
        for key, value in state.items():
            counts = key == "step"
            fixed = isinstance(value, Tensor) and trial.state[weight][key] is value
            if not fixed or (not counts and bool(value.any())):
                raise ValueError(
                    f"optimizer: {type(trial).__name__} keeps {key!r}, which lock-free workers "
                    "cannot share; choose sgd, adam or another whose state starts from zeros"
                )
    return [{key: torch.zeros_like(value) for key, value in state.items()} for state in found]


def _starts(tensors: Sequence[Tensor]) -> list[int]:
    """Where each begins, in bytes, and where the last ends."""
    starts = [0]
    for tensor in tensors:
        starts.append(-(-(starts[-1] + tensor.nbytes) // _ALIGNMENT) * _ALIGNMENT)
    return starts


def _block(tensors: Sequence[Tensor]) -> Tensor:
    block = torch.zeros(_starts(tensors)[-1], dtype=torch.uint8)
    block.share_memory_()  # type: ignore[no-untyped-call]
    return block


def _places(block: Tensor, tensors: Sequence[Tensor]) -> Iterator[Tensor]:
    """Views of the block with the shapes of the tensors, in their order."""
    for start, tensor in zip(_starts(tensors), tensors, strict=False):
        yield block[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
