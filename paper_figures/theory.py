"""The theory: delayed gradient descent, its bound on real data, and T2 on the discrepancy."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from paper_figures.style import COLUMN_WIDTH, MUTED, PALETTE, TEXT_WIDTH, absent, canvas, look
from reproduce.theory import DECAY, DelayedQuadratic, stability_bound

ALPHA, STEPS = 0.2, 80
TAU_FWD, TAU_BKWD = 10, 6
DIVERGES = "0.88"
"""Grey of the region where training diverges"""
Style = dict[str, Any]
WITHOUT: Style = {"color": look("async").colour, "ls": "-", "label": "without T2"}
WITH: Style = {"color": look("t1+t2").colour, "ls": "-.", "label": "with T2, D = e⁻²"}
PLAIN: Style = {"color": MUTED, "ls": ":", "label": "no discrepancy (Δ = 0)"}


def trajectories() -> Figure:
    """Delayed gradient descent on 1/2 w^2 at one step size, within and beyond the bound."""
    figure = canvas(COLUMN_WIDTH, 2.1)
    axes = figure.subplots()
    for tau, colour, line in ((0, PALETTE[2], ":"), (5, PALETTE[0], "-"), (10, PALETTE[1], "-.")):
        fate = "" if stability_bound(tau) > ALPHA else ", diverges"
        w = DelayedQuadratic(tau).trajectory(ALPHA, STEPS)
        axes.plot(w, color=colour, ls=line, label=f"τ = {tau}{fate}")
    axes.axhline(0, color=MUTED, lw=0.6, zorder=0)
    axes.set(xlim=(0, STEPS), ylim=(-6, 6), xlabel="step t", ylabel="$w_t$")
    axes.legend(loc="upper left")
    axes.text(0.03, 0.05, f"α = {ALPHA}, λ = 1", transform=axes.transAxes)
    return figure


def regression(frame: Any) -> Figure:
    """Final loss over alpha x tau on real data, under the lemma's bound.

    `frame` is the pandas frame of theory.csv.
    """
    runs = frame[frame["kind"] == "regression"]
    figure = canvas(COLUMN_WIDTH, 2.6)
    axes = figure.subplots()
    if runs.empty:
        absent(axes, "no runs: python -m reproduce theory makes them")
        return figure
    excess = (runs["final_loss"] - runs["optimum"]).where(~runs["diverged"].astype(bool))
    grid = runs.assign(excess=excess).pivot(index="alpha", columns="tau", values="excess")
    axes.set_facecolor(DIVERGES)
    alphas, taus = grid.index.to_numpy(), grid.columns.to_numpy()
    mesh = axes.pcolormesh(
        np.arange(len(taus) + 1) - 0.5, _edges(alphas), grid, norm=LogNorm(), cmap="viridis_r"
    )
    column = np.linspace(0, len(taus) - 1, 200)
    between = np.exp(np.interp(column, range(len(taus)), np.log(taus + 0.5))) - 0.5
    bound = stability_bound(between, runs["curvature"].iloc[0])
    axes.plot(column, bound, color="black", lw=1.6)
    axes.text(0.97, 0.93, "diverges", transform=axes.transAxes, ha="right", va="top")
    middle = len(column) // 2
    axes.annotate(
        r"$\frac{2}{\lambda_{\max}}\,\sin\,\frac{\pi}{4\tau + 2}$",
        (column[middle], bound[middle]), (0.52, 0.72), textcoords="axes fraction", fontsize=10,
        arrowprops={"arrowstyle": "-", "color": "black", "lw": 0.8},
    )  # fmt: skip
    axes.grid(False)
    axes.set_yscale("log", base=2)
    axes.set_xticks(range(len(taus)), [str(tau) for tau in taus])
    axes.set(xlabel="delay τ (updates)", ylabel="step size α", ylim=_edges(alphas)[[0, -1]])
    figure.colorbar(mesh, ax=axes, label="final loss above the optimum")
    return figure


def _edges(values: np.ndarray) -> np.ndarray:
    """The bounds of cells around values that are even on a log scale."""
    half = np.sqrt(values[1] / values[0])
    return np.append(values / half, values[-1] * half)


def discrepancy(frame: Any = None) -> Figure:
    """T2 where the discrepancy has either sign: spectral radius, and largest stable alpha.

    `frame` is the pandas frame of theory.csv: with it, the reference engine's own points of
    divergence are drawn where it has the delays of the curve.
    """
    figure = canvas(TEXT_WIDTH, 4.2)
    (positive, negative), (recomputed, live) = figure.subplots(2, 2)
    for axes, letter, delta in ((positive, "a", 5.0), (negative, "b", -5.0)):
        _radius(axes, delta)
        _name(axes, letter, TAU_BKWD, f"Δ = {delta:g}".replace("-", "−"))
    for axes, letter, tau_bkwd in ((recomputed, "c", TAU_BKWD), (live, "d", 0)):
        _stable(axes, tau_bkwd)
        _name(axes, letter, tau_bkwd)
    if frame is not None:
        _engine(live, frame)
    live.sharey(recomputed)
    handles, labels = live.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5)
    return figure


def _name(axes: Axes, letter: str, tau_bkwd: int, more: str = "") -> None:
    delays = (rf"$\tau_\mathrm{{fwd}}$ = {TAU_FWD}", rf"$\tau_\mathrm{{bkwd}}$ = {tau_bkwd}")
    text = f"({letter})  {', '.join(delays)}"
    axes.set_title(f"{text}, {more}" if more else text, loc="left")


def _radius(axes: Axes, delta: float) -> None:
    """Spectral radius over alpha, one line a model."""
    alpha = np.linspace(0, 0.2, 201)[1:]
    for model, style in (
        (DelayedQuadratic(TAU_FWD, TAU_BKWD), PLAIN),
        (DelayedQuadratic(TAU_FWD, TAU_BKWD, delta), WITHOUT),
        (DelayedQuadratic(TAU_FWD, TAU_BKWD, delta, DECAY), WITH),
    ):
        axes.plot(alpha, model.spectral_radius(alpha), **style)
    axes.axhspan(1, 1.2, color=DIVERGES, lw=0, zorder=0)
    axes.text(0.02, 0.95, "diverges", transform=axes.transAxes, va="top")
    axes.set(xlim=(0, 0.2), ylim=(0.9, 1.2), xlabel="step size α", ylabel="spectral radius")
    axes.set_xticks([0, 0.05, 0.1, 0.15, 0.2])


def _stable(axes: Axes, tau_bkwd: int) -> None:
    """Largest stable alpha over Delta, one line a model."""
    deltas = np.linspace(-6, 6, 61)
    axes.axhline(DelayedQuadratic(TAU_FWD).largest_stable_alpha(), **PLAIN)
    for decay, style in ((None, WITHOUT), (DECAY, WITH)):
        models = (DelayedQuadratic(TAU_FWD, tau_bkwd, delta, decay) for delta in deltas)
        axes.plot(deltas, [model.largest_stable_alpha() for model in models], **style)
    axes.set_yscale("log")
    axes.set(xlim=(-6, 6), xlabel="discrepancy Δ / λ", ylabel="largest stable α")


def _engine(axes: Axes, frame: Any) -> None:
    """The middle of each bisection's last bracket."""
    runs = frame[(frame["kind"] == "discrepancy") & (frame["tau"] == TAU_FWD)]
    for corrected, style, marker, name in (
        (False, WITHOUT, "o", "without T2"),
        (True, WITH, "s", "with T2"),
    ):
        series = runs[runs["corrected"].astype(bool) == corrected]
        diverged = series["diverged"].astype(bool)
        low = series[~diverged].groupby("delta")["alpha"].max()
        high = series[diverged].groupby("delta")["alpha"].min()
        axes.plot(
            low.index, np.sqrt(low * high), color=style["color"], marker=marker, ls="", mec="black",
            mew=0.6, label=f"reference engine, {name}",
        )  # fmt: skip
