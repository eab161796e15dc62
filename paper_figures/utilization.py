"""What GPipe leaves idle, from its formula: what there is for asynchrony to buy."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from seaborn import color_palette

from paper_figures import style
from paper_figures.style import PALETTE, TEXT_WIDTH
from reproduce.schedule import gpipe_utilization
from reproduce.tables import Table

DEPTHS = (2, 4, 8, 16, 32, 64, 107, 150)
"""Devices of a pipeline with one a stage: the last two are the paper's ResNets"""
MICROBATCHES = np.unique(np.geomspace(1, 1024, 200).round().astype(int))
BUBBLE = 4
"""GPipe calls its bubble negligible from N = 4P on"""


def utilization(table: Table) -> Figure:
    """N/(N+P−1) against N for some P, and its inverse: how much faster the same pipeline could be.

    The table's own networks are marked where their N and P put them.
    """
    figure = style.canvas(TEXT_WIDTH, 2.6)
    busy, gain = figure.subplots(1, 2)
    colours = color_palette("crest", len(DEPTHS))  # from light to dark, as the lines are ordered
    for depth, colour in zip(DEPTHS, colours, strict=True):
        share = [gpipe_utilization(depth, int(n)) for n in MICROBATCHES]
        busy.plot(MICROBATCHES, share, color=colour)
        gain.plot(MICROBATCHES, 1 / np.array(share), color=colour, label=f"P = {depth}")
    _bubble_line(busy, gain)
    _networks(busy, gain, table)
    busy.set(xscale="log", ylim=(0, 1.02), ylabel="busy share of a device")
    gain.set(xscale="log", yscale="log", ylabel="time of GPipe / time with no flush")
    gain.set_yticks([1, 2, 4, 8, 16, 32, 64, 128], ["1", "2", "4", "8", "16", "32", "64", "128"])
    gain.set_ylim(0.95, 170)
    gain.minorticks_off()
    for axes in (busy, gain):
        axes.set_xlabel("N, micro-batches a mini-batch")
        axes.set_xticks([1, 4, 16, 64, 256, 1024], ["1", "4", "16", "64", "256", "1024"])
        axes.minorticks_off()
        axes.set_xlim(1, 1024)
    busy.set_title("GPipe with one device a stage: N / (N + P − 1)")
    gain.set_title("what is left for asynchrony to buy")
    figure.legend(*gain.get_legend_handles_labels(), loc="outside right center")
    return figure


def _bubble_line(busy: Axes, gain: Axes) -> None:
    """Where N = 4P crosses each curve."""
    at = [BUBBLE * depth for depth in DEPTHS]
    share = np.array([gpipe_utilization(depth, BUBBLE * depth) for depth in DEPTHS])
    for axes, values in ((busy, share), (gain, 1 / share)):
        axes.plot(at, values, color=PALETTE[3], marker="|", linestyle="--", linewidth=1)
    limit = BUBBLE / (BUBBLE + 1)
    gain.lines[-1].set_label(f"N = {BUBBLE}P:\n≥ {limit:.0%} busy,\n≤ {1 / limit:.2f}× to gain")


def _networks(busy: Axes, gain: Axes, table: Table) -> None:
    """The networks of the table, less its sweeps, one device a stage."""
    rows = [cell for cell in table.cells.values() if not cell.variant]
    places: dict[tuple[int, int], str] = {}
    for cell in rows:
        at = (cell.settings.microbatches, cell.settings.stages)
        names = places.setdefault(at, cell.network_name)
        if cell.network_name not in names.split(", "):
            places[at] = f"{names}, {cell.network_name}"
    for (n, depth), names in places.items():
        share = gpipe_utilization(depth, n)
        for axes, value in ((busy, share), (gain, 1 / share)):
            axes.plot([n], [value], "o", color="#222222", markersize=4, zorder=3)
        gain.annotate(
            f"{names}: {1 / share:.1f}×", (n, 1 / share), xytext=(6, 2), fontsize=style.SMALL,
            textcoords="offset points", zorder=2,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.4, "alpha": 0.8},
        )  # fmt: skip
