"""Whether a second training pass over the same micro-batch repeats the first.

PipeMare Recompute takes this for granted: R(m,i) gives the activations that F(m,i) threw away. It
runs after the forward passes of later micro-batches, so a unit whose output depends on what passes
before it left behind (a running scale, as in batch renormalization or quantization) would recompute
something else. Batch norm's running statistics are fine: no output of a training pass depends on
them. So are constant buffers.
"""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor

from models.unit import Boundary, Unit, run_units
from reproduce.job import Job
from reproduce.phases import phases

_FAR = 1e6
"""Passes to look ahead: what a unit makes of a count or an average may start late"""


def recomputes(job: Job, stage: int) -> bool:
    """Whether stage i does any recomputation in this run."""
    return any(phase.schedule.recomputes(stage) for phase in phases(job))


def unrepeatable(job: Job, index: int, inputs: Boundary) -> str | None:
    """Why a training pass of unit `index` over `inputs` may give another output the second time, in
    words; None: three passes agree.

    They start from the initial buffers, from those that the first pass leaves, and from those that
    a million like it would leave. They run on the CPU, where a pass can be repeated to the bit.
    """
    unit = job.network.build(index, job.seed).to(job.dtype).train()
    inputs = tuple(t.detach().cpu() for t in inputs)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        before = _buffers(unit)
        first = _output(job, unit, index, inputs)
        after = _buffers(unit)
        changed = {name: after[name] for name in before if not _same([before[name]], [after[name]])}
        agree = _same(first, _output(job, unit, index, inputs))
        # No training leads to just these values: a unit that stumbles over them proves nothing.
        with contextlib.suppress(RuntimeError, IndexError, ValueError):
            for name, buffer in unit.named_buffers():
                if name in changed:
                    buffer.copy_(_gone_on(before[name], after[name]))
            agree = agree and _same(first, _output(job, unit, index, inputs))
    if agree:
        return None
    if changed:
        return f"each pass changes {' and '.join(changed)}, which its output depends on"
    return "it draws random numbers without a dropout_p, or keeps something that is no buffer"


def _output(job: Job, unit: Unit, index: int, inputs: Boundary) -> Boundary:
    """Of a forward pass as the engines do it, dropout keyed by the micro-batch."""
    return run_units([(index, unit)], inputs, job.seed, 0)


def _gone_on(before: Tensor, after: Tensor) -> Tensor:
    """Where a buffer gets that goes on as in this one pass."""
    if after.dtype == torch.bool:
        return after
    return before.double() + _FAR * (after.double() - before.double())


def _buffers(unit: Unit) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in unit.named_buffers()}


def _same(some: Boundary | list[Tensor], others: Boundary | list[Tensor]) -> bool:
    pairs = zip(some, others, strict=True)
    return all(torch.allclose(a, b, rtol=0.0, atol=0.0, equal_nan=True) for a, b in pairs)
