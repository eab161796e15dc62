"""Delays as they were counted, against the formula; and those of lock-free workers."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from pandas import DataFrame, Series

from paper_figures import style
from paper_figures.material import Material, Missing, networks
from paper_figures.style import MUTED, TEXT_WIDTH
from reproduce.hogwild import RandomDelays
from reproduce.methods import METHODS
from reproduce.schedule import SCHEDULES

COLUMNS = 2
HOW = (
    "Filled: forward delay τ_fwd; hollow: backward delay τ_bkwd; both counted from the weight "
    "versions that passes read, in steady state. Methods are drawn at different stages, or a "
    "little aside, so that none hides another."
)


def delays(material: Material) -> Figure:
    """Counted delay of each stage over (2(P−i)+1)/N, a panel a network; a histogram of the delays
    that lock-free workers measured."""
    runs = material.need()
    stages = material.records.stages
    counted = runs[
        runs["mlflow_run_id"].isin(set(stages.dropna(subset="tau_fwd")["mlflow_run_id"]))
    ]
    lockfree = runs[runs["mlflow_run_id"].isin(set(material.records.delays["mlflow_run_id"]))]
    if counted.empty and lockfree.empty:
        raise Missing(f"no run of table {material.table.name} counted its delays")
    found = networks(counted)
    total = len(found) + bool(len(lockfree))
    rows = -(-total // COLUMNS)
    figure = style.canvas(TEXT_WIDTH, 2.1 * rows + 0.4)
    panels = figure.subplots(rows, COLUMNS, squeeze=False).ravel()
    gaps: list[str] = []
    for axes, network in zip(panels, found, strict=False):
        mine = counted[(counted["network"] == network) & ~counted.index.isin(lockfree.index)]
        gaps += _network(axes, material, mine, network)
    if len(lockfree):
        _histogram(panels[len(found)], material, lockfree)
    for axes in panels[total:]:
        axes.set_axis_off()
    lines = {
        "formula": Line2D([], [], color=MUTED, lw=1.0),
        "in expectation": Line2D([], [], color=MUTED, lw=1.0, ls="--"),
    }
    style.legend(figure, [*counted["method"], *lockfree["method"]], lines if found else {})
    told = (
        [f"Largest gap between count and formula, in updates: {'; '.join(gaps)}."] if gaps else []
    )
    style.note(figure, [HOW, *told, *material.notes()])
    return figure


def _network(axes: Axes, material: Material, runs: DataFrame, network: str) -> list[str]:
    """Every method's first run; returns what is told of how well count and formula agree."""
    first = runs.drop_duplicates("method").set_index("method", drop=False)
    methods = style.in_order(first.index)
    worst, known = 0.0, 0
    for place, method in enumerate(methods):
        run, look = first.loc[method], style.look(method)
        counted = material.records.of(material.records.stages, run).sort_values("stage")
        expected = formula(run)
        if expected is not None:
            dashes = "--" if is_random(method) else "-"
            axes.plot(expected.index, expected, color=MUTED, lw=0.8, ls=dashes, zorder=1)
            gap = (counted.set_index("stage")["tau_fwd"] - expected).abs().max()
            if not is_random(method) and gap == gap:
                worst, known = max(worst, gap), known + 1
        few = len(counted) < 6 * len(methods)
        shown = counted if few else counted.iloc[place :: len(methods)]
        aside = 0.6 * (place / len(methods) - 0.5) if few and len(methods) > 1 else 0.0
        for column, face in (("tau_bkwd", "white"), ("tau_fwd", look.colour)):
            axes.plot(
                shown["stage"] + aside, shown[column], look.marker, color=look.colour,
                ms=3.2, mfc=face, mew=0.6, clip_on=False, zorder=2,
            )  # fmt: skip
    run = first.iloc[0]
    axes.set(xlabel="stage i", ylabel="delay (updates)", ylim=(0, None))
    axes.set_title(f"{network}: P = {int(run['set_stages'])}, N = {int(run['set_microbatches'])}")
    if not known:
        return []
    return [f"{network} {worst:.2g} (all {len(counted)} stages, {known} methods)"]


def formula(run: Series) -> Series | None:
    """The delay of every stage by the function that the run's method derives its own from, in
    updates; None for a method that has no such function here."""
    method = METHODS.get(run["method"])
    if method is None or method.lockfree:
        return None
    n, p = int(run["set_microbatches"]), int(run["set_stages"])
    flushes = method.schedule == "gpipe" and method.delays is None
    kind = run.get("set_schedule", "ticks")
    plan = SCHEDULES["gpipe" if flushes else kind if kind in SCHEDULES else "ticks"](p, n)
    of = RandomDelays.expected if method.delays is RandomDelays else lambda tau: tau
    return Series({i: float(of(plan.tau(i))) for i in range(1, p + 1)})


def is_random(method: str) -> bool:
    """Whether the formula holds in expectation only."""
    return method in METHODS and METHODS[method].delays is not None


def _histogram(axes: Axes, material: Material, runs: DataFrame) -> None:
    """How often a lock-free worker's gradient met weights so many updates newer."""
    longest = 0
    for place, method in enumerate(style.in_order(runs["method"])):
        mine = runs[runs["method"] == method]["mlflow_run_id"]
        counts = material.records.delays
        counts = counts[counts["mlflow_run_id"].isin(set(mine))].groupby("delay")["count"].sum()
        share = counts.reindex(range(int(counts.index.max()) + 1), fill_value=0) / counts.sum()
        look, mean = style.look(method), float(np.average(counts.index, weights=counts))
        axes.stairs(share, np.arange(len(share) + 1) - 0.5, color=look.colour, lw=1.2)
        axes.stairs(share, np.arange(len(share) + 1) - 0.5, color=look.colour, alpha=0.2, fill=True)
        axes.axvline(mean, color=look.colour, ls=look.line, lw=1)
        axes.annotate(
            f"{look.label}: mean {mean:.1f}", (0.98, 0.97 - 0.1 * place), xycoords="axes fraction",
            ha="right", va="top", color=look.colour, fontsize=style.SMALL,
        )  # fmt: skip
        longest = max(longest, int(counts.index[counts > 0].max()))
    axes.set_xlim(-0.7, longest + 0.7)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="measured delay (updates)", ylabel="share of the updates")
    axes.set_ylim(0, 1.3 * axes.dataLim.ymax)
    axes.set_title("lock-free workers: delays as measured")
