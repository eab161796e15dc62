"""How the gradients of the micro-batches of a mini-batch add up."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def accumulate(totals: list[Tensor | None], found: Sequence[Tensor | None]) -> None:
    """Add `found` to `totals`, in memory of their own: autograd may hand out one tensor for a
    weight's gradient and for another weight's, or for the one that goes upstream.

    None: no gradient (yet).
    """
    for index, gradient in enumerate(found):
        total = totals[index]
        if gradient is not None:
            totals[index] = gradient.clone() if total is None else total.add_(gradient)
