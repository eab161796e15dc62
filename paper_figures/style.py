"""One look for every figure: colour-blind-safe, a colour and a marker a method, legible small."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from zlib import crc32

import matplotlib
import seaborn
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter
from pandas import Series

from reproduce.claims import Verdict
from reproduce.tracking import results_folder

matplotlib.use("Agg")

PALETTE = seaborn.color_palette("colorblind")
FORWARD, BACKWARD, UPDATE, RECOMPUTE = PALETTE[0], PALETTE[1], PALETTE[2], PALETTE[4]
MUTED = "#6e6e6e"
"""Reference lines and notes"""
LEGEND_COLUMNS = 7
COLUMN_WIDTH, TEXT_WIDTH = 3.4, 7.0
"""Inches: one column of a paper, and both"""
SMALL, NORMAL, TITLE = 6.5, 7.0, 7.5
"""Points at print size; nothing is smaller than the first"""

VERDICTS = {
    Verdict.REPRODUCED: ("✓", "#00734F"),
    Verdict.NOT_REPRODUCED: ("✗", "#B04400"),
    Verdict.UNDECIDED: ("?", "#7A6000"),
}
"""A sign and a colour each"""


@dataclass(frozen=True)
class Look:
    """How one method is drawn, everywhere."""

    label: str
    colour: str
    marker: str
    line: Literal["-", "--", "-.", ":"] = "-"


LOOKS = {
    "gpipe": Look("GPipe", "#222222", "o"),
    "pipedream": Look("PipeDream", "#E69F00", "s"),
    "async": Look("no technique", "#D55E00", "X"),
    "t1": Look("T1", "#56B4E9", "^"),
    "t1+t2": Look("T1+T2", "#0072B2", "D"),
    "t1+t2+t3": Look("T1+T2+T3", "#009E73", "P"),
    "hogwild": Look("Hogwild!", "#CC79A7", "v", "--"),
    "hogwild+t1": Look("Hogwild!+T1", "#882255", "<", "--"),
    "hogwild-lockfree": Look("lock-free", "#B8A93A", "h", ":"),
    "hogwild-lockfree+t1": Look("lock-free+T1", "#6B5B1E", ">", ":"),
}
"""Okabe and Ito's colours, then Tol's for the Hogwild! rows; line styles tell the three families"""
_FURTHER = ("#7A5195", "#A0522D", "#5F8A8B", "#B22222", "#4B5D16", "#8080C0")
_FURTHER_MARKERS = ("p", "*", "d", "8", "H")


def look(method: str) -> Look:
    """A method's look; one that the table does not know gets its own, always the same."""
    if method in LOOKS:
        return LOOKS[method]
    number = crc32(method.encode())
    colour = _FURTHER[number % len(_FURTHER)]
    marker = _FURTHER_MARKERS[number // len(_FURTHER) % len(_FURTHER_MARKERS)]
    return Look(method, colour, marker, "-.")


def in_order(methods: Iterable[str]) -> list[str]:
    """Each method once, in the order of the table, unknown ones after them by name."""
    known = list(LOOKS)
    place = {method: known.index(method) if method in LOOKS else len(known) for method in methods}
    return sorted(place, key=lambda method: (place[method], method))


def apply() -> None:
    """Set the style for all that is drawn from here on."""
    seaborn.set_theme(style="ticks", context="paper", font="DejaVu Sans")
    matplotlib.rcParams.update(
        {
            "font.size": NORMAL,
            "axes.labelsize": NORMAL,
            "axes.titlesize": TITLE,
            "axes.titlelocation": "left",
            "axes.titlepad": 4.0,
            "axes.linewidth": 0.6,
            "axes.edgecolor": "#444444",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.color": "#e6e6e6",
            "grid.linewidth": 0.5,
            "xtick.labelsize": SMALL,
            "ytick.labelsize": SMALL,
            "xtick.major.width": 0.6,
            "ytick.major.width": 0.6,
            "xtick.major.size": 2.5,
            "ytick.major.size": 2.5,
            "xtick.minor.size": 1.5,
            "ytick.minor.size": 1.5,
            "xtick.minor.width": 0.4,
            "ytick.minor.width": 0.4,
            "legend.fontsize": SMALL,
            "legend.frameon": False,
            "legend.handlelength": 1.8,
            "legend.columnspacing": 1.2,
            "lines.linewidth": 1.2,
            "lines.markersize": 4.0,
            "lines.markeredgewidth": 0.6,
            "savefig.dpi": 200,
            "pdf.fonttype": 42,
            "svg.hashsalt": "figures",
        }
    )


def canvas(width: float, height: float) -> Figure:
    """An empty figure of so many inches, laid out so that nothing overlaps."""
    return Figure(figsize=(width, height), layout="constrained")


def note(figure: Figure, lines: Sequence[str]) -> None:
    """Say on the figure's face, below everything, what a reader must know; adds to its height."""
    if not lines:
        return
    width, height = figure.get_size_inches()
    text = "\n".join(textwrap.fill(line, int(width * 20), break_on_hyphens=False) for line in lines)
    extra = (text.count("\n") + 1) * SMALL * 1.3 / 72 + 0.06
    figure.set_size_inches(width, height + extra)
    share = extra / (height + extra)
    engine = figure.get_layout_engine()
    if isinstance(engine, ConstrainedLayoutEngine):
        engine.set(rect=(0, share, 1, 1 - share))
    at = 0.04 / (height + extra)
    figure.text(0.008, at, text, va="bottom", fontsize=SMALL, color=MUTED, linespacing=1.3)


def legend(
    figure: Figure, methods: Iterable[str], extra: Mapping[str, Line2D] | None = None
) -> None:
    """The methods' colours and markers above the panels, and what else is named in `extra`."""
    handles = [
        Line2D([], [], color=one.colour, marker=one.marker, ls=one.line, label=one.label)
        for one in map(look, in_order(methods))
    ]
    for label, handle in (extra or {}).items():
        handle.set_label(label)
        handles.append(handle)
    if handles:
        lines = -(-len(handles) // LEGEND_COLUMNS)
        ncols = -(-len(handles) // lines)
        figure.legend(handles=handles, loc="outside upper left", ncols=ncols)


def log_scale(axes: Axes) -> None:
    """A logarithmic y axis with plain numbers."""
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    low, high = axes.get_ylim()
    if high < 20 * low:  # else there may be no power of ten to label
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
    axes.yaxis.set_minor_formatter(NullFormatter())


def absent(axes: Axes, text: str) -> None:
    """A panel that says what is missing in place of showing it."""
    axes.set_axis_off()
    axes.text(
        0.5,
        0.5,
        textwrap.fill(text, 34, break_on_hyphens=False),
        transform=axes.transAxes,
        ha="center",
        va="center",
        color=MUTED,
        fontsize=NORMAL,
    )


def beside(axes: Axes, at: float, text: str, colour: str, marker: str) -> None:
    """In a panel of rows: what a row has in place of a value, at the left edge."""
    across = axes.get_yaxis_transform()
    if marker:
        axes.plot([0.02], [at], marker, transform=across, color=colour, ms=5, mew=1.5)
    axes.text(
        0.05 if marker else 0.02, at, text, transform=across, va="center", color=colour,
        fontsize=SMALL, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6}, zorder=3,
    )  # fmt: skip


def measured(axes: Axes, row: Series, at: float, method: str) -> None:
    """In a panel of rows: a row of `evidence.quality` with its interval, or that it diverged."""
    how = look(method)
    if row["diverged"] or row["mean"] != row["mean"]:
        told = f"{how.label} diverges ({row['diverged']} of {row['n']})"
        beside(axes, at, told, how.colour, "x")
        return
    axes.plot([row["low"], row["high"]], [at, at], color=how.colour, lw=2.2, alpha=0.6)
    axes.plot([row["mean"]], [at], how.marker, color=how.colour, ms=5.5)


def folder() -> Path:
    """Where figures go: `figures` in the results folder."""
    path = results_folder() / "figures"
    path.mkdir(parents=True, exist_ok=True)
    return path
