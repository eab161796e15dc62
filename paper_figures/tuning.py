"""A study's figures: what matters (importance), each setting (slices), each pair (contours).

Drawn from the study's records, `results/tuning/<study>.csv`, whose columns `ablations tune` names.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import seaborn
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter
from matplotlib.tri import Triangulation, TriContourSet
from pandas import DataFrame

from paper_figures import style

ENDINGS = ("png", "pdf")
STATES = {
    "complete": ("to the end", style.PALETTE[0], "o"),
    "pruned": ("pruned, when last scored", style.PALETTE[1], "v"),
    "diverged": ("diverged", style.PALETTE[3], "X"),
}
"""How a trial is drawn; a failed one says nothing of its settings"""
ENOUGH = 4
"""Trials to the end that a contour takes"""


def draw(
    stem: str,
    trials: DataFrame,
    importance: Mapping[str, float],
    keys: Sequence[str],
    logarithmic: Collection[str],
    metric: str,
) -> list[Path]:
    """Draw the figures that there is something for, as tuning-<stem>-... in the figures folder.

    Args:
        trials: one row each: state, value (of `metric`, percent), and a column for each of `keys`.
        importance: setting -> share of the variance of the value.
        logarithmic: settings that were searched on a logarithmic scale.
    """
    style.apply()
    shown = trials[trials["state"].isin(STATES)]
    pictures = {}
    if importance:
        pictures["importance"] = importances(importance)
    if len(shown):
        pictures["slices"] = slices(shown, keys, logarithmic, metric)
    numeric = [key for key in keys if pd.api.types.is_numeric_dtype(shown[key])]
    if len(numeric) > 1 and (shown["state"] == "complete").sum() >= ENOUGH:
        pictures["contours"] = contours(shown, numeric, logarithmic, metric)
    paths = []
    for name, figure in pictures.items():
        for ending in ENDINGS:
            path = style.folder() / f"tuning-{stem}-{name}.{ending}"
            undated = {"CreationDate": None} if ending == "pdf" else {}
            figure.savefig(path, metadata={"Title": f"{name} of {stem}"} | undated)
            paths.append(path)
    return paths


def importances(importance: Mapping[str, float]) -> Figure:
    """One bar a setting, the largest on top."""
    figure = style.canvas(style.COLUMN_WIDTH, 0.6 + 0.24 * len(importance))
    axes = figure.subplots()
    names = sorted(importance, key=lambda key: importance[key], reverse=True)
    seaborn.barplot(
        x=[100 * importance[key] for key in names], y=names, color=style.PALETTE[0], ax=axes
    )
    axes.set(xlabel="share of the value's variance (fANOVA, %)", ylabel="", xlim=(0, 100))
    axes.set_title("Which settings decide")
    return figure


def slices(
    trials: DataFrame, keys: Sequence[str], logarithmic: Collection[str], metric: str
) -> Figure:
    """The value over each setting, every trial a point."""
    figure = style.canvas(min(style.TEXT_WIDTH, 1.2 + 1.9 * len(keys)), 2.2)
    panels = figure.subplots(1, len(keys), sharey=True, squeeze=False)[0]
    for axes, key in zip(panels, keys, strict=True):
        _points(axes, trials, key, None)
        _scale(axes, key, logarithmic, "x")
        axes.set_xlabel(key)
    panels[0].set_ylabel(f"{metric} (%)")
    _legend(figure, panels[0])
    return figure


def contours(
    trials: DataFrame, keys: Sequence[str], logarithmic: Collection[str], metric: str
) -> Figure:
    """The value over each pair of two or more numeric settings, between the trials that got to
    the end."""
    pairs = list(combinations(keys, 2))
    columns = min(3, len(pairs))
    lines = -(-len(pairs) // columns)
    figure = style.canvas(min(style.TEXT_WIDTH, 0.8 + 2.2 * columns), 0.4 + 2.0 * lines)
    panels = figure.subplots(lines, columns, squeeze=False).flat
    ended = trials[trials["state"] == "complete"]
    low, high = ended["value"].min(), ended["value"].max()
    filled = None
    for axes, (x, y) in zip(panels, pairs, strict=False):
        filled = _filled(axes, ended, x, y, logarithmic, np.linspace(low, high, 9)) or filled
        _points(axes, trials, x, y)
        _scale(axes, x, logarithmic, "x")
        _scale(axes, y, logarithmic, "y")
        axes.set(xlabel=x, ylabel=y)
    for axes in figure.axes[len(pairs) :]:
        axes.set_axis_off()
    _legend(figure, figure.axes[0])
    if filled is not None:
        figure.colorbar(
            filled, ax=figure.axes[: len(pairs)], label=f"{metric} (%)", shrink=0.8, format="%.4g"
        )
    return figure


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=len(labels))


def _points(axes: Axes, trials: DataFrame, x: str, y: str | None) -> None:
    for state, (label, colour, marker) in STATES.items():
        some = trials[trials["state"] == state]
        if len(some):
            axes.scatter(
                _plain(some[x]),
                some["value"] if y is None else some[y],
                color=colour, marker=marker, s=16, label=label, linewidths=0.4,
                edgecolors="white", zorder=3,
            )  # fmt: skip


def _plain(values: pd.Series) -> pd.Series:
    """Numbers as they are, anything else as words."""
    return values.astype(float if pd.api.types.is_numeric_dtype(values) else str)


def _filled(
    axes: Axes, ended: DataFrame, x: str, y: str, logarithmic: Collection[str], levels: np.ndarray
) -> TriContourSet | None:
    """Linear between the trials; None where they lie on a line or all score the same."""
    if levels[0] == levels[-1]:
        return None
    try:
        # Triangles as they look on the axes' scales.
        flat = Triangulation(*(_flat(ended[key], key, logarithmic) for key in (x, y)))
    except (RuntimeError, ValueError):
        return None
    places = Triangulation(ended[x].astype(float), ended[y].astype(float), flat.triangles)
    return axes.tricontourf(
        places, ended["value"].astype(float), levels=levels, cmap="cividis", alpha=0.85
    )


def _flat(values: pd.Series, key: str, logarithmic: Collection[str]) -> np.ndarray:
    numbers: np.ndarray = values.to_numpy(float)
    return np.log(numbers) if key in logarithmic else numbers


def _scale(axes: Axes, key: str, logarithmic: Collection[str], of: str) -> None:
    if key in logarithmic:
        getattr(axes, f"set_{of}scale")("log")
        axis = getattr(axes, f"{of}axis")
        axis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=9))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())
    axes.use_sticky_edges = False
    axes.margins(0.06)
