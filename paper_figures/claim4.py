"""C4: memory against quality."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from paper_figures import style
from paper_figures.material import Material, Missing, metric_name
from paper_figures.style import MUTED, TEXT_WIDTH
from reproduce.claims import evidence

COLUMNS = 3
HOW = (
    "Bytes of weights, optimizer state, T2's δ and stashed versions, without gradients and "
    "activations, of runs that reached their end. Bars: bootstrap over the seeds; × on the lower "
    "edge: some runs diverged; a row all of whose runs did is not drawn. The line bounds "
    "what no other row beats in both. Hogwild! rows are left out: what they stash is the history "
    "that their delays are drawn from."
)


def claim4(material: Material) -> Figure:
    """Quality over the bytes it takes, a panel a network with its optimizer."""
    material.need()
    bytes_of = evidence.memory(material.records).drop(columns=["runs"])
    found = evidence.quality(material.records).merge(bytes_of, on=["network", "method", "cell"])
    found = found[~found["method"].str.startswith("hogwild") & (found["total"] > 0)]
    networks = list(dict.fromkeys(found["network"]))
    if not networks:
        raise Missing(
            f"table {material.table.name} has no run that reached its end and counted its memory"
        )
    columns = min(COLUMNS, len(networks))
    rows = -(-len(networks) // columns)
    figure = style.canvas(TEXT_WIDTH, 2.3 * rows + 0.3)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, network in zip(panels, networks, strict=False):
        _network(axes, found[found["network"] == network])
    for axes in panels[len(networks) :]:
        axes.set_axis_off()
    style.legend(figure, found["method"])
    notes = material.notes(lambda _, method: not method.startswith("hogwild"))
    style.note(figure, [HOW, *_ratios(found), *material.diverged(), *notes])
    return figure


def _network(axes: Axes, found: DataFrame) -> None:
    whole = found[(found["diverged"] == 0) & found["mean"].notna()]
    for _, row in whole.iterrows():
        look = style.look(row["method"])
        megabytes = row["total"] / 1e6
        axes.plot([megabytes] * 2, [row["low"], row["high"]], color=look.colour, lw=2.2, alpha=0.5)
        axes.plot([megabytes], [row["mean"]], look.marker, color=look.colour, ms=5.5)
    for _, row in found[found["diverged"] > 0].iterrows():
        look = style.look(row["method"])
        axes.plot(
            [row["total"] / 1e6], [0.03], "x", transform=axes.get_xaxis_transform(),
            color=look.colour, ms=6, mew=1.6,
        )  # fmt: skip
    if whole.empty:
        axes.text(
            0.5,
            0.5,
            "no row without a run that diverged",
            transform=axes.transAxes,
            ha="center",
            color=MUTED,
        )
        axes.set_yticks([])
    _frontier(axes, whole)
    axes.set_xlim(0, found["total"].max() / 1e6 * 1.12)
    name = metric_name(found["metric"].iloc[0], unit=True)
    axes.set(xlabel="weights and what goes with them (MB)", ylabel=f"final {name}")
    axes.set_title(f"{found['network'].iloc[0]}\n{found['optimizer'].iloc[0]}")
    axes.margins(y=0.15)


def _frontier(axes: Axes, whole: DataFrame) -> None:
    """From left to right, the best quality that so many bytes have had."""
    if len(whole) < 2:
        return
    ordered = whole.sort_values("total")
    axes.step(
        ordered["total"] / 1e6, ordered["mean"].cummax(), where="post", color="#bbbbbb", lw=0.8,
        zorder=0,
    )  # fmt: skip


def _ratios(found: DataFrame) -> list[str]:
    """How many times T1+T2's bytes PipeDream's are, in a line."""
    rows = found[found["method"] == "t1+t2"].dropna(subset="pipedream_over")
    told = [f"{row['network']} {row['pipedream_over']:.2f}" for _, row in rows.iterrows()]
    return [f"PipeDream's bytes over those of T1+T2: {'; '.join(told)}."] if told else []
