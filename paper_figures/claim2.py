"""C2: training with T1 and without it, in the pipeline and in Hogwild!."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from paper_figures import style
from paper_figures.material import Material, Missing, metric_name
from paper_figures.style import MUTED, TEXT_WIDTH
from reproduce.claims import evidence

FAMILIES = {
    "pipeline": ("async", "t1"),
    "Hogwild!, drawn delays": ("hogwild", "hogwild+t1"),
    "Hogwild!, lock-free": ("hogwild-lockfree", "hogwild-lockfree+t1"),
}
"""Rows that differ in T1 alone: without it, with it"""
HOW = "Means and bootstrap intervals over the seeds; grey: GPipe, synchronous, on the same seeds."


def claim2(material: Material) -> Figure:
    """Final quality of each pair of rows that differ in T1 alone, a panel a network."""
    material.need()
    found = evidence.quality(material.records)
    networks = [n for n in dict.fromkeys(found["network"]) if _pairs(found[found["network"] == n])]
    if not networks:
        raise Missing(f"table {material.table.name} has no two rows that differ in T1 alone")
    heights = [len(_pairs(found[found["network"] == n])) for n in networks]
    figure = style.canvas(TEXT_WIDTH, 0.34 * sum(heights) + 0.62 * len(networks) + 0.3)
    panels = figure.subplots(
        len(networks), 1, squeeze=False, height_ratios=[h + 0.3 for h in heights]
    )
    for axes, network in zip(panels[:, 0], networks, strict=True):
        _network(axes, found[found["network"] == network])
    shown = {"gpipe", *(method for pair in FAMILIES.values() for method in pair)}
    style.legend(figure, shown & set(found["method"]))
    notes = material.notes(lambda network, method: network in networks and method in shown)
    style.note(figure, [HOW, *notes])
    return figure


def _pairs(found: DataFrame) -> dict[str, tuple[str, str]]:
    """The families of which a network has both rows."""
    methods = set(found["method"])
    return {name: pair for name, pair in FAMILIES.items() if methods.issuperset(pair)}


def _network(axes: Axes, found: DataFrame) -> None:
    rows = {row["method"]: row for _, row in found.iterrows()}
    pairs = _pairs(found)
    base = rows.get("gpipe")
    if base is not None and base["mean"] == base["mean"]:
        axes.axvspan(base["low"], base["high"], color=MUTED, alpha=0.2, lw=0)
        axes.axvline(base["mean"], color=style.look("gpipe").colour, ls="--", lw=0.8)
    for at, pair in enumerate(pairs.values()):
        ends = [rows[method]["mean"] for method in pair]
        if all(end == end for end in ends):
            offsets = [at - 0.14, at + 0.14]
            axes.plot(ends, offsets, color="#bbbbbb", lw=1, zorder=1)
        for offset, method in zip((at - 0.14, at + 0.14), pair, strict=True):
            style.measured(axes, rows[method], offset, method)
    axes.set_yticks(range(len(pairs)), list(pairs))
    axes.set_ylim(len(pairs) - 0.45, -0.55)
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")
    name = metric_name(found["metric"].iloc[0], unit=True)
    axes.set(title=str(found["network"].iloc[0]), xlabel=f"final {name}")
    axes.margins(x=0.08)
