"""The learning curves of every network of the grid."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from pandas import DataFrame, Series

from paper_figures import style
from paper_figures.material import Material, metric_name, networks
from paper_figures.style import MUTED, TEXT_WIDTH
from reproduce.records import Records

HOW = (
    "Thick: mean over the seeds; thin: each seed, and alone where one of them diverged; "
    "×: where a run diverged."
)


def curves(material: Material) -> Figure:
    """Metric and loss over the steps, a row a network; diverged runs end in a cross."""
    runs = material.need()
    found = networks(runs)
    figure = style.canvas(TEXT_WIDTH, 1.95 * len(found) + 0.35)
    panels = figure.subplots(len(found), 2, squeeze=False)
    for (left, right), network in zip(panels, found, strict=True):
        mine = runs[runs["network"] == network]
        metric = mine["metric"].iloc[0]
        for method in style.in_order(mine["method"]):
            of_method = mine[mine["method"] == method]
            for axes, series in ((left, metric), (right, "loss")):
                _method(axes, material.records, of_method, series)
        left.set(ylabel=metric_name(metric, unit=True), title=f"{network}: {metric_name(metric)}")
        right.set(ylabel="loss", title=f"{network}: training loss")
        style.log_scale(right)
        _limits(left, mine)
        left.set_xlim(0, mine["steps"].max() * 1.02)
        right.set_xlim(left.get_xlim())
    for axes in panels[-1]:
        axes.set_xlabel("optimizer steps")
    cross = Line2D([], [], color=MUTED, marker="x", linestyle="", markeredgewidth=1.4)
    extra = {"diverged": cross} if (runs["status"] == "diverged").any() else {}
    style.legend(figure, runs["method"], extra)
    style.note(figure, [HOW, *material.diverged(), *material.notes()])
    return figure


def _method(axes: Axes, records: Records, runs: DataFrame, series: str) -> None:
    """One method's runs of one network: each seed, their mean, and crosses."""
    look = style.look(runs["method"].iloc[0])
    line: dict[str, Any] = {"color": look.colour, "ls": look.line}
    seeds = {}
    for _, run in runs.iterrows():
        found = records.of(records.curves, run)
        found = found[found["series"] == series].dropna(subset="value")
        curve = found.drop_duplicates("step", keep="last").set_index("step")["value"].sort_index()
        axes.plot(curve.index, curve, lw=0.5, alpha=0.6, **line)
        if run["status"] == "diverged":
            _cross(axes, run["diverged_at"], curve, look.colour)
        seeds[run["mlflow_run_id"]] = curve
    if (runs["status"] == "diverged").any():
        return
    mean = DataFrame(seeds).dropna().mean(axis=1)
    marker = look.marker if series != "loss" and len(mean) < 40 else ""
    axes.plot(mean.index, mean, marker=marker, ms=3.2, mec="white", mew=0.3, **line)


def _cross(axes: Axes, step: float, curve: Series, colour: str) -> None:
    """Where a run ended: at its last value, or on the lower edge where it never had one."""
    look: dict[str, Any] = {"color": colour, "ms": 5.5, "mew": 1.5, "clip_on": False, "zorder": 4}
    if len(curve):
        axes.plot([step], [curve.iloc[-1]], "x", **look)
    else:
        axes.plot([step], [0.02], "x", transform=axes.get_xaxis_transform(), **look)


def _limits(axes: Axes, runs: DataFrame) -> None:
    """Percent scales end at 100, and empty panels say so."""
    if not any(np.size(line.get_xdata()) for line in axes.lines if line.get_marker() != "x"):
        axes.text(0.5, 0.5, "no run was scored", transform=axes.transAxes, ha="center", color=MUTED)
    low, high = axes.get_ylim()
    if runs["metric"].iloc[0] in ("accuracy", "bleu"):
        axes.set_ylim(max(0, low), 101 if high > 60 else high)
