"""C5: activations and throughput over the number of stages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter
from pandas import DataFrame

from paper_figures import style
from paper_figures.material import Material, Missing, several
from paper_figures.style import TEXT_WIDTH
from reproduce.claims import evidence, rules
from reproduce.claims.activations import SERIES

KINDS = {False: ("kept", "-"), True: ("recomputed", "--")}
"""Recompute or not: label, line; markers are filled or hollow"""
HOW = (
    "Left: one weighted layer a stage, so the network grows with P; lines are fits of "
    "bytes ∝ P^exponent, with Student's interval of the exponent; the paper's are "
    f"{rules.ACTIVATIONS:g}, and {rules.RECOMPUTED:g} with recompute in segments of about √P "
    "stages. Middle and right: one network in ever finer cuts on the same workers."
)


def claim5(material: Material) -> Figure:
    """Peak of the activations over P with its fits, and one network cut finer."""
    records = material.records
    grown, cuts = evidence.activations(records), evidence.throughput(records)
    if grown.empty and cuts.empty:
        raise Missing(f"table {material.table.name} has no run of a sweep activations or cuts")
    figure = style.canvas(TEXT_WIDTH, 2.5)
    left, middle, right = figure.subplots(1, 3, width_ratios=(1.35, 1, 1))
    _activations(left, grown)
    _cuts(middle, cuts, "bytes", 1e-6, "peak of the activations (MB)")
    _cuts(right, cuts, "samples_per_s", 1.0, "samples a second")
    missing = [*material.missing("activations"), *material.missing("cuts")]
    runs = [*grown["n"], *cuts["n"]]
    lines = [HOW, "1 run a point." if max(runs) == 1 else f"{min(runs)} runs a point or more."]
    style.note(figure, [*lines, *([f"missing: {several(missing)}"] if missing else [])])
    return figure


def _activations(axes: Axes, found: DataFrame) -> None:
    """Points and fits; points that no exponent may be fitted to are hollow."""
    if found.empty:
        style.absent(axes, "missing: the sweep activations")
        return
    fits = evidence.exponents(found)
    several_series = len(found[SERIES].drop_duplicates()) > 1
    for key, group in found.groupby([*SERIES, "recompute"]):
        label, line = KINDS[bool(key[-1])]
        look = style.look(key[1])
        if several_series:
            label = f"{look.label}, batch {key[2]}, N = {key[3]}, {label}"
        fit = fits[(fits[[*SERIES, "recompute"]] == list(key)).all(axis=1)]
        if len(fit):
            law = fit.iloc[0]
            ends = np.array([group["stages"].min(), group["stages"].max()])
            curve = law["scale"] * ends ** law["exponent"] / 1e6
            axes.plot(ends, curve, line, color=look.colour, lw=1)
            label += f": {law['exponent']:.2f} [{law['low']:.2f}, {law['high']:.2f}]"
        else:
            depths = group.loc[group["fits"], "stages"].nunique()
            label += f": no fit ({depths} of 3 depths)"
        face = "white" if key[-1] else look.colour
        for fitted, some in group.groupby("fits"):
            mark: dict[str, Any] = {
                "color": look.colour,
                "mfc": face,
                "alpha": 1.0 if fitted else 0.4,
                "ls": line,
            }
            axes.plot(
                [], [], look.marker, label=label if fitted else f"{label}, not fitted", **mark
            )
            axes.plot(some["stages"], some["bytes"] / 1e6, look.marker, **mark | {"ls": ""})
    axes.set(xscale="log", yscale="log", xlabel="stages P", ylabel="peak of the activations (MB)")
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * 4)
    axes.legend(loc="upper left", title="exponent of P", alignment="left",
                title_fontsize=style.SMALL)  # fmt: skip
    axes.set_title(f"{found['network'].iloc[0]}\none weighted layer a stage")
    _ticks(axes, found["stages"])


def _ticks(axes: Axes, stages: Iterable[int]) -> None:
    shown = sorted(set(stages))
    axes.set_xticks(shown, [str(p) for p in shown])
    axes.xaxis.set_minor_locator(LogLocator(subs=[]))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _cuts(axes: Axes, found: DataFrame, column: str, scale: float, label: str) -> None:
    """One quantity of the cuts over P."""
    told = found.empty or not found["placed"].any()
    found = found[found[column] > 0]
    if found.empty:
        style.absent(axes, "missing: the sweep cuts" if told else "measured on different machines")
        return
    groups = list(found.groupby([*SERIES, "workers"]))
    for (_, method, batch_size, n, workers), group in groups:
        look = style.look(method)
        axes.plot(
            group["stages"], group[column] * scale, look.line, marker=look.marker,
            color=look.colour, label=f"{look.label}, batch {batch_size}, N = {n}, K = {workers}",
        )  # fmt: skip
    (network, method, *_, workers), _ = groups[0]
    if len(groups) > 1:
        axes.legend(loc="best")
        axes.set_title(network)
    else:
        axes.set_title(f"{network}\n{style.look(method).label}, {workers} workers")
    axes.set(xlabel="stages P", ylabel=label)
    axes.set_ylim(0, found[column].max() * scale * 1.15)
    axes.set_xlim(0, found["stages"].max() * 1.08)
    axes.set_xticks(sorted(set(found["stages"])))
