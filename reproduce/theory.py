"""The theory: how large a step size may be when gradients are late.

Everything happens on the quadratic 1/2 lambda w^2. A gradient whose forward pass read weights of
tau_fwd updates ago and whose backward pass read others is modelled with a discrepancy Delta,

    g_t     = (lambda + Delta) w_{t - tau_fwd} - Delta u_t
    w_{t+1} = w_t - alpha g_t

    u_t = w_{t - tau_bkwd}                                      without correction
    u_t = w_{t - tau_bkwd} - (tau_fwd - tau_bkwd) delta_t       with T2
    delta_{t+1} = gamma delta_t + (1 - gamma) (w_{t+1} - w_t),  gamma = D^(1/(tau_fwd - tau_bkwd))

Where w goes as z^t, delta goes as (1 - gamma) (z - 1) / (z - gamma) z^t, so z is a root of

    z^tau_fwd (z - 1) + alpha (lambda + Delta) - alpha Delta z^(tau_fwd - tau_bkwd) = 0

or, with T2, of that polynomial times (z - gamma), plus
alpha Delta (tau_fwd - tau_bkwd) (1 - gamma) z^tau_fwd (z - 1). Training is stable while every root
lies inside the unit circle. With Delta = 0 this is delayed gradient descent, and the paper's lemma
gives the bound in closed form: alpha = (2 / lambda) sin(pi / (4 tau + 2)).

delta_t is the running mean of the updates up to the one that made w_t: the newest there is when
the gradient is taken, whatever tau_bkwd. With delta_{t - tau_bkwd} the bounds would be others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.polynomial import Polynomial
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

DECAY = math.exp(-2)
"""D of the theory's examples (assumed)"""
_GRID, _ROUNDS = 32, 6
"""Step sizes looked at in a round of `largest_stable_alpha`; a round narrows it by that factor"""


def stability_bound(tau: ArrayLike, curvature: float = 1.0) -> Floats:
    """The lemma: the largest stable alpha of w_{t+1} = w_t - alpha lambda w_{t-tau}.

    `tau` in updates, any shape; `curvature` is lambda, for a loss of several dimensions the
    largest eigenvalue of its Hessian.
    """
    return 2 / curvature * np.sin(np.pi / (4 * np.asarray(tau, dtype=np.float64) + 2))


@dataclass(frozen=True)
class DelayedQuadratic:
    """The model above; the field names are its symbols.

    Raises:
        ValueError: lambda or D out of range, or delays that no pipeline has.
    """

    tau_fwd: int
    """Updates"""
    tau_bkwd: int = 0
    """Updates; no effect without a discrepancy"""
    discrepancy: float = 0.0
    """Delta"""
    decay: float | None = None
    """D of T2, between 0 and 1; None: no correction"""
    curvature: float = 1.0
    """lambda"""

    def __post_init__(self) -> None:
        if not 0 <= self.tau_bkwd <= self.tau_fwd:
            raise ValueError(
                f"tau_fwd = {self.tau_fwd}, tau_bkwd = {self.tau_bkwd}: the forward weights are at "
                "least as old as the backward ones; choose 0 <= tau_bkwd <= tau_fwd"
            )
        if self.curvature <= 0:
            raise ValueError(f"curvature = {self.curvature}: no minimum; choose one above 0")
        if self.decay is not None and not 0 < self.decay < 1:
            raise ValueError(f"decay = {self.decay}: choose D between 0 and 1, or None for no T2")

    @property
    def gap(self) -> int:
        """tau_fwd - tau_bkwd, in updates."""
        return self.tau_fwd - self.tau_bkwd

    @property
    def gamma(self) -> float | None:
        """T2's; None: nothing is corrected."""
        return self.decay ** (1 / self.gap) if self.decay is not None and self.gap else None

    def trajectory(self, alpha: float, steps: int, start: float = 1.0) -> Floats:
        """w_0 ... w_steps by the recursion itself; before step 0 all weights are `start`."""
        w = np.full(self.tau_fwd + steps + 1, start)
        delta, gamma = 0.0, self.gamma or 0.0
        for t in range(self.tau_fwd, self.tau_fwd + steps):
            u = w[t - self.tau_bkwd] - (self.gap * delta if self.gamma is not None else 0.0)
            forward = (self.curvature + self.discrepancy) * w[t - self.tau_fwd]
            w[t + 1] = w[t] - alpha * (forward - self.discrepancy * u)
            delta = gamma * delta + (1 - gamma) * (w[t + 1] - w[t])
        return w[self.tau_fwd :]

    def characteristic(self) -> tuple[Polynomial, Polynomial]:
        """(a, b): the roots of a(z) + alpha b(z) are the growth factors of w a step; a is monic."""
        z, power = Polynomial([0.0, 1.0]), Polynomial.basis
        still = power(self.tau_fwd) * (z - 1)
        gradient = self.curvature + self.discrepancy - self.discrepancy * power(self.gap)
        if self.gamma is None:
            return still, gradient
        correction = self.discrepancy * self.gap * (1 - self.gamma) * still
        return (z - self.gamma) * still, (z - self.gamma) * gradient + correction

    def spectral_radius(self, alpha: ArrayLike) -> Floats:
        """The largest modulus among the eigenvalues of the companion matrix, for each alpha."""
        a, b = self.characteristic()
        degree, alphas = a.degree(), np.asarray(alpha, dtype=np.float64)
        fixed, moved = np.zeros(degree), np.zeros(degree)
        fixed[:], moved[: len(b.coef)] = a.coef[:-1], b.coef  # a's last coefficient is 1
        companion = np.zeros((*alphas.shape, degree, degree))
        companion[..., 1:, :-1] = np.eye(degree - 1)
        companion[..., :, -1] = -(fixed + alphas[..., None] * moved)
        radius: Floats = np.abs(np.linalg.eigvals(companion)).max(axis=-1)
        return radius

    def largest_stable_alpha(self) -> float:
        """The first alpha above 0 at which the spectral radius reaches 1."""
        low, high = 0.0, 2 / self.curvature
        while self.spectral_radius(high) < 1:
            high *= 2
        for _ in range(_ROUNDS):
            grid = np.linspace(low, high, _GRID + 1)
            first = 1 + int(np.argmax(self.spectral_radius(grid[1:]) >= 1))
            low, high = grid[first - 1], grid[first]
        return float(low)
