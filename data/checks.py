"""Checks of arguments that several tasks take; each error is one line that says how to mend it."""

from __future__ import annotations


def label_smoothing(value: float) -> float:
    """`value` if it is a share of probability.

    Raises:
        ValueError: not in 0 <= value < 1.
    """
    if not 0 <= value < 1:
        raise ValueError(f"label_smoothing={value} is not in [0, 1): use 0 for none, or 0.1")
    return value
