"""C3: where T1 alone diverges, and how well T2 knows the forward weights."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from pandas import DataFrame, Series
from seaborn import color_palette

from paper_figures import style
from paper_figures.material import Material, Missing, several
from paper_figures.style import MUTED, TEXT_WIDTH
from reproduce.claims import evidence, rules

METHODS = ("gpipe", "t1", "t1+t2", "t1+t2+t3")
SWEEP = (
    "Middle: × diverges; filled: does not diverge in {steps} steps; numbers: so many of so many "
    "runs diverge. Of the {ended} runs that do not, {learnt} had learnt the task at the end."
)
RATIO = (
    "Right: below 1, T2's weights are nearer to those of the forward pass than the live ones are."
)


def claim3(material: Material) -> Figure:
    """The deepest network's loss, who diverges at which depth, and T2's approximation."""
    records = material.records
    deep = [n for n in evidence.networks(records) if rules.DEEP in n]
    depth, ratio = evidence.depth(records), evidence.approximation(records)
    if not deep and depth.empty and ratio.empty:
        raise Missing(
            f"table {material.table.name} has no {rules.DEEP}, no sweep depth and no sweep "
            "approximation"
        )
    rows = depth[["network", "regime"]].drop_duplicates()
    figure = style.canvas(TEXT_WIDTH, max(2.3, 1.0 + 0.5 * len(rows)))
    losses, where, nearness = figure.subplots(1, 3, width_ratios=(1.0, 1.35, 1.0))
    _losses(losses, material, deep)
    _depths(where, depth)
    _ratios(nearness, ratio)
    own = records.runs_of()
    own = own[own["network"].isin(deep[:1]) & own["method"].isin(METHODS)]
    cross = Line2D([], [], color=MUTED, marker="x", linestyle="", markeredgewidth=1.4)
    style.legend(figure, [*own["method"], *depth["method"]], {"diverged": cross})
    style.note(figure, [*_how(depth), RATIO, *_notes(material)])
    return figure


def _how(depth: DataFrame) -> list[str]:
    """What the panel of the sweep shows: runs too short to learn say only who diverges."""
    steps = sorted({int(s) for s in depth["steps"].dropna()})
    if not steps:
        return [] if depth.empty else ["Middle: ×: every run of the sweep diverges."]
    told = f"{steps[0]}" if len(steps) == 1 else f"{steps[0]} to {steps[-1]}"
    ended = int((depth["n"] - depth["diverged"]).sum())
    return [SWEEP.format(steps=told, ended=ended, learnt=int(depth["learnt"].sum()) or "none")]


def _notes(material: Material) -> list[str]:
    """What is missing of the three parts."""
    deep = [cell for cell in material.missing() if rules.DEEP in cell]
    missing = [*deep, *material.missing("depth"), *material.missing("approximation")]
    return [f"missing: {several(missing)}"] if missing else []


def _losses(axes: Axes, material: Material, deep: list[str]) -> None:
    """Every run of the deepest network's rows."""
    if not deep:
        style.absent(axes, f"missing: a network with {rules.DEEP}")
        return
    records = material.records
    runs = records.runs_of(network=deep[0])
    for method in style.in_order(set(runs["method"]) & set(METHODS)):
        look = style.look(method)
        for _, run in runs[runs["method"] == method].iterrows():
            curve = records.of(records.curves, run)
            curve = curve[curve["series"] == "loss"].dropna(subset="value").sort_values("step")
            axes.plot(curve["step"], curve["value"], color=look.colour, lw=0.9)
            if run["status"] == "diverged" and len(curve):
                axes.plot(
                    [run["diverged_at"]], [curve["value"].iloc[-1]], "x", color=look.colour,
                    ms=5.5, mew=1.5, clip_on=False, zorder=4,
                )  # fmt: skip
    axes.set(xlabel="optimizer steps", ylabel="training loss")
    style.log_scale(axes)
    axes.set_title(f"{deep[0]}, P = {int(runs['set_stages'].iloc[0])}")


def _depths(axes: Axes, found: DataFrame) -> None:
    """A row a regime, a column a depth, a marker a method."""
    if found.empty:
        style.absent(axes, "missing: the sweep depth")
        return
    depths = sorted(found["stages"].unique())
    rows = list(dict.fromkeys(zip(found["network"], found["regime"], strict=True)))
    methods = style.in_order(found["method"])
    for _, cell in found.iterrows():
        row = rows.index((cell["network"], cell["regime"]))
        spread = (methods.index(cell["method"]) - (len(methods) - 1) / 2) * 0.34
        _depth(axes, cell, depths.index(cell["stages"]) + spread, row)
    several_networks = len({network for network, _ in rows}) > 1
    names = [f"{n}\n{_regime(r)}" if several_networks else _regime(r) for n, r in rows]
    axes.set_xticks(range(len(depths)), [str(p) for p in depths])
    axes.set_yticks(range(len(rows)), names)
    axes.set(xlim=(-0.6, len(depths) - 0.4), ylim=(len(rows) - 0.45, -0.55))
    axes.set(xlabel="stages P")
    axes.set_title("who diverges" if several_networks else f"{rows[0][0]}: who diverges")
    axes.tick_params(length=0)
    axes.grid(False)
    for edge in range(1, len(depths)):
        axes.axvline(edge - 0.5, color="#e6e6e6", lw=0.6)
    for edge in range(1, len(rows)):
        axes.axhline(edge - 0.5, color="#e6e6e6", lw=0.6)


def _regime(regime: str) -> str:
    """`lr=0.005,batch_size=128` over lines."""
    names = {"batch_size": "batch", "lr_schedule": "schedule", "microbatches": "N"}
    parts = [part.partition("=") for part in regime.split(",") if part]
    return "\n".join(f"{names.get(key, key)} {value}" for key, _, value in parts) or "as the table"


def _depth(axes: Axes, cell: Series, x: float, y: int) -> None:
    look = style.look(cell["method"])
    diverged, n = cell["diverged"], cell["n"]
    marker = "x" if diverged == n else look.marker
    face = look.colour if not diverged else "white"
    axes.plot(
        [x], [y], marker, color=look.colour, mfc=face, ms=6, mew=1.6 if marker == "x" else 0.8
    )
    if n > 1:
        axes.annotate(
            f"{diverged}/{n}", (x, y), xytext=(0, -11), textcoords="offset points", ha="center",
            fontsize=style.SMALL, color=look.colour,
        )  # fmt: skip


def _ratios(axes: Axes, found: DataFrame) -> None:
    """One line a depth, over the delay of its stages."""
    if found.empty:
        style.absent(axes, "missing: the sweep approximation")
        return
    groups = list(found.groupby(["network", "regime", "method", "stages"], sort=False))
    groups.sort(key=lambda group: group[0][3])
    several_methods = found["method"].nunique() > 1
    for (_, group), colour in zip(groups, color_palette("crest", len(groups)), strict=True):
        line = group.sort_values("tau_fwd")
        axes.plot(
            line["tau_fwd"], line["ratio"], color=colour, marker=".", ms=3, lw=0.9,
            label=f"P = {line['stages'].iloc[0]}"
            + (f", {style.look(line['method'].iloc[0]).label}" if several_methods else ""),
        )  # fmt: skip
    axes.axhline(1, color=MUTED, ls="--", lw=0.8)
    axes.set_xlabel(r"delay $\tau_{fwd}$ of a stage (updates)")
    axes.set_ylabel(r"$\|u_{bkwd} - w_{fwd}\|\;/\;\|w - w_{fwd}\|$")
    axes.set_ylim(0, 1.4 * max(1.0, found["ratio"].max()))
    axes.set_title(f"{groups[0][0][0]}: T2's error")
    axes.legend(loc="upper right")
