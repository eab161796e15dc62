"""What a piece of a method is told about the stage it works on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from torch import Tensor


@dataclass(frozen=True)
class StageContext:
    """One stage of one run, as seen by T1, T2 and every other piece."""

    stage: int
    """i = 1..P"""
    tau_fwd: Fraction
    """Mean delay of the forward weights (updates)"""
    tau_bkwd: Fraction
    """Mean delay of the backward weights (updates)"""
    annealing_steps: int
    """K of T1"""
    decay: float
    """D of T2"""
    seed: int
    weights: Sequence[Tensor] = field(default=(), repr=False)
    """The stage's parameters, live"""
    t1_exponent: float = 1.0
    """e of T1, an extension"""
    t1_floor: float = 1.0
    """The smallest tau that T1 divides by (updates)"""
    tau_recomp: Fraction | None = None
    """Mean delay of the weights that a recomputation reads (updates); None: there is none"""
