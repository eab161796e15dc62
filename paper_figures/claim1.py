"""C1: what asynchrony costs in quality, and what it saves in time to a target."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from pandas import DataFrame, Series

from paper_figures import style
from paper_figures.material import Material, Missing, metric_name
from paper_figures.style import MUTED, TEXT_WIDTH
from reproduce.claims import evidence, rules

BASELINE = "gpipe"
GAP = (
    "Gap: GPipe minus method, paired by seed; thick: bootstrap over the seeds; thin: what the "
    "verdict goes by, with the test set's sampling error and few seeds allowed for."
)
SPEEDUP = (
    "Speedup: GPipe's time to the target over the method's; filled: model with one device a "
    "stage, its bar from evaluation to evaluation; hollow: with the utilization measured, where "
    "both ran on the same workers."
)
UNTIMED = "No time to target: the table sets none."


def claim1(material: Material) -> Figure:
    """Gap to synchronous training and time to target, a row of panels a network."""
    material.need()
    gaps = _pipelines(evidence.gaps(material.records))
    times = _pipelines(evidence.time_to_target(material.records))
    if gaps.empty:
        raise Missing(f"table {material.table.name} has no network with gpipe and another method")
    networks = list(dict.fromkeys(gaps["network"]))
    methods = {n: style.in_order(gaps.loc[gaps["network"] == n, "method"])[::-1] for n in networks}
    heights = [len(methods[n]) + 1.8 for n in networks]
    figure = style.canvas(TEXT_WIDTH, 0.16 * sum(heights) + 0.55 * len(networks) + 0.3)
    columns = 2 if len(times) else 1
    panels = figure.subplots(len(networks), columns, squeeze=False, height_ratios=heights)
    for row, network in zip(panels, networks, strict=True):
        mine, order = gaps[gaps["network"] == network], methods[network]
        _gaps(row[0], mine, order)
        _names(row[0], order, evidence.pipemare(material.records, network, material.table.cells))
        for axes in row[1:]:
            of_network = times[times["network"] == network]
            _times(axes, of_network, order, mine["metric"].iloc[0])
            _names(axes, order)
    band = Patch(facecolor="#dddddd", label="one step of the metric")
    one = Line2D([], [], color=MUTED, ls="--", label="GPipe")
    bold = Line2D([], [], color="none", label="bold: the row that stands for PipeMare")
    figure.legend(handles=[one, band, bold], loc="outside upper left", ncols=3)
    notes = material.notes(lambda _, method: not method.startswith("hogwild"))
    style.note(figure, [GAP, *([SPEEDUP] if columns == 2 else [UNTIMED]), *notes])
    return figure


def _pipelines(found: DataFrame) -> DataFrame:
    """Without the Hogwild! rows, which C2 is about."""
    return found[~found["method"].str.startswith("hogwild")]


def _names(axes: Axes, methods: list[str], pipemare: str | None = None) -> None:
    """A row a method; without `pipemare` the names stand in the panel to the left."""
    names = [style.look(method).label if pipemare else "" for method in methods]
    axes.set_yticks(range(len(methods)), names)
    axes.set_ylim(-0.6, len(methods) - 0.4)
    axes.tick_params(axis="y", length=0)
    for label, method in zip(axes.get_yticklabels(), methods, strict=True):
        label.set_fontweight("bold" if method == pipemare else "normal")
    axes.grid(False, axis="y")


def _gaps(axes: Axes, found: DataFrame, methods: list[str]) -> None:
    """One network's gaps, with zero and the step of its metric."""
    step = found["resolution"].max()
    if step == step:
        axes.axvspan(-step, step, color="#dddddd", lw=0, zorder=0)
    axes.axvline(0, color=MUTED, ls="--", lw=0.8, zorder=1)
    for _, gap in found.iterrows():
        _gap(axes, gap, methods.index(gap["method"]))
    name = metric_name(found["metric"].iloc[0])
    axes.set_title(f"{found['network'].iloc[0]}: {name} lost against GPipe")
    axes.set_xlabel(f"gap ({'points of ' if name == 'BLEU' else 'percentage points of '}{name})")
    axes.margins(x=0.12)


def _gap(axes: Axes, gap: Series, at: int) -> None:
    look = style.look(gap["method"])
    if gap["differ"]:
        style.beside(axes, at, "of other settings", MUTED, "")
        return
    if gap["diverged"] or gap["baseline_diverged"]:
        who = look.label if gap["diverged"] else "GPipe"
        n, of = ("diverged", "runs_n") if gap["diverged"] else ("baseline_diverged", "baseline_n")
        style.beside(axes, at, f"{who} diverges ({gap[n]} of {gap[of]})", look.colour, "x")
        return
    if gap["mean"] != gap["mean"]:
        style.beside(axes, at, "no seed in common", MUTED, "")
        return
    reach = rules.decisive(gap)
    if np.isfinite([reach.low, reach.high]).all():
        axes.plot([reach.low, reach.high], [at, at], color=look.colour, lw=0.8)
    axes.plot([gap["low"], gap["high"]], [at, at], color=look.colour, lw=2.4, alpha=0.6)
    axes.plot([gap["mean"]], [at], look.marker, color=look.colour, ms=5.5)


def _times(axes: Axes, found: DataFrame, methods: list[str], metric: str) -> None:
    """One network's speedups to its target."""
    if found.empty:
        style.absent(axes, "no target set: no time to it")
        return
    base = found[found["method"] == BASELINE]
    target, steps = found["target"].iloc[0], base["steps"].iloc[0] if len(base) else np.nan
    axes.axvline(1, color=MUTED, ls="--", lw=0.8, zorder=1)
    axes.set_xscale("log")
    known = steps == steps
    metric = {"accuracy": "% accuracy", "bleu": " BLEU"}.get(metric, f" {metric}")
    for _, row in found[found["method"] != BASELINE].iterrows():
        if row["method"] in methods:
            _time(axes, row, methods.index(row["method"]), known)
    of_gpipe = f"GPipe: {steps:.0f} steps" if known else "GPipe never reaches it"
    axes.set_title(f"time to {target:g}{metric} ({of_gpipe})")
    axes.set_xlabel("speedup over GPipe (×)")
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, 0.7), max(high, 2.5) * 1.15)
    ticks = [t for t in (0.125, 0.25, 0.5, 1, 2, 4, 8, 16, 32, 64) if low <= t <= max(high, 2.5)]
    axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axes.minorticks_off()


def _time(axes: Axes, row: Series, at: int, known: bool) -> None:
    look = style.look(row["method"])
    if row["reached"] < row["n"]:
        style.beside(axes, at, f"reached in {row['reached']} of {row['n']} runs", look.colour, "")
        return
    if not known or row["speedup_low"] != row["speedup_low"]:
        style.beside(axes, at, f"{row['steps']:.0f} steps", look.colour, "")
        return
    ends = [row["speedup_low"], row["speedup_high"]]
    axes.plot(ends, [at, at], color=look.colour, lw=2.4, alpha=0.6)
    mark: dict[str, Any] = {"color": look.colour, "ms": 5, "mew": 0.6}
    axes.plot([row["speedup_workers"]], [at], look.marker, mfc="white", **mark)
    axes.plot([row["speedup_stages"]], [at], look.marker, **mark)
    axes.annotate(
        f"{row['speedup_stages']:.1f}×", (row["speedup_stages"], at), xytext=(0, 3.5),
        textcoords="offset points", ha="center", fontsize=style.SMALL, color=look.colour,
    )  # fmt: skip
