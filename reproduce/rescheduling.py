"""T1, learning-rate rescheduling: a step size that accounts for the delay.

    alpha_{k,i} = alpha_base(k) / max(tau_i, 1)^{p_k},    p_k = 1 - min(k / K, 1)

over K annealing steps, with tau_i = tau_fwd,i in updates and k counted from the first asynchronous
step. The floor at 1 and the start of k are assumed.

An extension that is off by default, for tuning: max(tau_i, floor)^{e p_k}, the paper's form where
e = floor = 1.
"""

from __future__ import annotations

from reproduce.stage_context import StageContext


def exponent(k: int, annealing_steps: int) -> float:
    """p_k; 0 from step K on, and always where K = 0."""
    return 1.0 - min(k / annealing_steps, 1.0) if annealing_steps > 0 else 0.0


class Rescheduling:
    """The factor alpha_{k,i} / alpha_base(k) of one stage."""

    def __init__(self, context: StageContext) -> None:
        self.tau = float(context.tau_fwd)
        self.annealing_steps = context.annealing_steps
        self.strength, self.floor = context.t1_exponent, context.t1_floor

    def factor(self, k: int) -> float:
        power = self.strength * exponent(k, self.annealing_steps)
        return float(max(self.tau, self.floor) ** -power)
