"""What the workers really did: a stretch of a traced run of each method."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from pandas import DataFrame, Series

from paper_figures import style
from paper_figures.material import Material, Missing
from paper_figures.style import BACKWARD, FORWARD, RECOMPUTE, TEXT_WIDTH, UPDATE
from reproduce.trace import NAMES, TraceEvent, to_chrome

COLOURS = {"F": FORWARD, "B": BACKWARD, "R": RECOMPUTE, "U": UPDATE}
"""Work; a wait stays white"""
MINIBATCHES = 2
"""In the stretch that is drawn, of the method that takes longest for them"""
READABLE = 0.012
"""Share of the width from which on a box is wide enough for its number"""


def timeline(material: Material) -> Figure:
    """The methods' workers one above the other, on the same scale of time."""
    runs = _traced(material)
    stretches = [_stretch(_events(material, run), run) for _, run in runs.iterrows()]
    span = max(end - start for start, end in stretches)
    workers = [max(_events(material, run)["worker"]) + 1 for _, run in runs.iterrows()]
    figure = style.canvas(TEXT_WIDTH, 0.5 + sum(0.3 * n + 0.42 for n in workers))
    panels = figure.subplots(len(runs), 1, sharex=True, squeeze=False, height_ratios=workers)
    for axes, (_, run), (start, _) in zip(panels[:, 0], runs.iterrows(), stretches, strict=True):
        _draw(axes, _events(material, run), start, span, int(run["set_microbatches"]))
        axes.set_title(_title(run, _updates(_events(material, run), start, span)))
    panels[-1, 0].set_xlabel("ms, from the start of a mini-batch in the middle of the run")
    used = sorted({kind for _, run in runs.iterrows() for kind in _events(material, run)["kind"]})
    patches = [Patch(color=COLOURS[k], label=NAMES[k]) for k in COLOURS if k in used]
    figure.legend(handles=patches, loc="outside upper left", ncols=4)
    how = "A number is the micro-batch; mini-batches alternate in shade; white is waiting."
    style.note(figure, [how])
    return figure


def traces(material: Material) -> dict[str, dict[str, Any]]:
    """Each drawn timeline in the trace event format, by method."""
    return {
        run["method"]: to_chrome(
            [
                TraceEvent(int(worker), kind, int(stage), int(microbatch), start, end)
                for _, worker, kind, stage, microbatch, start, end in _events(
                    material, run
                ).itertuples(index=False)
            ]
        )
        for _, run in _traced(material).iterrows()
    }


def _traced(material: Material) -> DataFrame:
    """The first traced run of each method: of the sweep `trace`, else of any."""
    runs, trace = material.records.runs, material.records.trace
    runs = runs[runs["mlflow_run_id"].isin(set(trace["mlflow_run_id"]))]
    if (runs["sweep"] == "trace").any():
        runs = runs[runs["sweep"] == "trace"]
    if runs.empty:
        raise Missing(f"table {material.table.name} has no traced run; set trace = true in a sweep")
    first = runs[runs["network"] == runs["network"].iloc[0]].drop_duplicates("method")
    order = style.in_order(first["method"])
    return first.set_index("method", drop=False).loc[order]


def _events(material: Material, run: Series) -> DataFrame:
    return material.records.of(material.records.trace, run)


def _stretch(events: DataFrame, run: Series) -> tuple[float, float]:
    """When stage 1 starts a mini-batch in the middle of the run, and one some mini-batches on."""
    size = int(run["set_microbatches"])
    forwards = events[(events["kind"] == "F") & (events["stage"] == events["stage"].min())]
    starts = forwards.set_index("microbatch")["start_s"].sort_index()
    batches = int(starts.index.max()) // size
    first = max(0, min(batches // 2, batches - MINIBATCHES))
    start = starts.get(first * size, events["start_s"].min())
    end = starts.get((first + MINIBATCHES) * size, events["end_s"].max())
    return float(start), float(end)


def _draw(axes: Axes, events: DataFrame, start: float, span: float, microbatches: int) -> None:
    """One row a worker."""
    shown = events[(events["end_s"] > start) & (events["start_s"] < start + span)]
    for kind, colour in COLOURS.items():
        for odd in (0, 1):
            batch = shown["microbatch"] // microbatches % 2
            mine = shown[(shown["kind"] == kind) & (batch == odd)]
            boxes = [
                Rectangle(((e.start_s - start) * 1e3, e.worker + 0.06), _ms(e), 0.88)
                for e in mine.itertuples()
            ]
            face = {"facecolor": colour, "edgecolor": "white", "linewidth": 0.15}
            axes.add_collection(PatchCollection(boxes, alpha=0.5 if odd else 0.85, **face))
            for event in mine.itertuples():
                if kind in "FB" and _ms(event) > READABLE * span * 1e3:
                    _number(axes, event, start)
    workers = range(int(events["worker"].max()) + 1)
    axes.set(xlim=(0, span * 1e3), ylim=(len(workers), 0))
    axes.set_yticks([w + 0.5 for w in workers], [f"worker {w}" for w in workers])
    axes.tick_params(axis="y", length=0)
    axes.grid(False)


def _ms(event: Any) -> float:
    return float(event.end_s - event.start_s) * 1e3


def _number(axes: Axes, event: Any, start: float) -> None:
    middle = (event.start_s + event.end_s) / 2 - start
    axes.text(
        middle * 1e3, event.worker + 0.5, str(event.microbatch), ha="center", va="center",
        fontsize=style.SMALL, clip_on=True,
    )  # fmt: skip


def _updates(events: DataFrame, start: float, span: float) -> int:
    """How often the first stage was updated in the stretch."""
    mine = events[(events["kind"] == "U") & (events["stage"] == events["stage"].min())]
    return int(mine["end_s"].between(start, start + span).sum())


def _title(run: Series, updates: int) -> str:
    p, n = run["set_stages"], run["set_microbatches"]
    name = f"{style.look(run['method']).label}, P = {p}, N = {n}: {updates} updates here"
    busy = run["utilization_measured"]
    return name if busy != busy else f"{name}; workers busy {busy:.0%} of the whole run"
