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


HOW = (
    "Numbers: micro-batches, where there is room; mini-batches alternate in shade; white: waiting."
)


def timeline(material: Material) -> Figure:
    """The methods' workers one above the other, on the same scale of time."""
    runs = _traced(material)
    traced = [(run, _events(material, run)) for _, run in runs.iterrows()]
    span = max(_pace(events, run) for run, events in traced)
    workers = [events["worker"].max() + 1 for _, events in traced]
    figure = style.canvas(TEXT_WIDTH, 0.5 + sum(0.3 * n + 0.42 for n in workers))
    panels = figure.subplots(len(traced), 1, sharex=True, squeeze=False, height_ratios=workers)
    short: list[str] = []
    for axes, (run, events) in zip(panels[:, 0], traced, strict=True):
        start = _start(events, run, span)
        _draw(axes, events, start, span, int(run["set_microbatches"]))
        axes.set_title(_title(run, _updates(events, start, span)))
        drains = (_steady(events)[1] - start) * 1e3
        if drains < span * 1e3 * 0.9:
            label = style.look(run["method"]).label
            short.append(f"{label} drains from {drains:.0f} ms on")
    panels[-1, 0].set_xlabel("ms, from the end of a mini-batch on stage 1")
    used = {kind for _, events in traced for kind in events["kind"]}
    patches = [Patch(color=COLOURS[kind], label=NAMES[kind]) for kind in COLOURS if kind in used]
    figure.legend(handles=patches, loc="outside upper left", ncols=4)
    style.note(figure, [HOW, *([f"Short runs: {'; '.join(short)}."] if short else [])])
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


def _steady(events: DataFrame) -> tuple[float, float]:
    """From the first backward pass of stage 1 to its last forward pass: neither fill nor drain."""
    mine = events[events["stage"] == events["stage"].min()]
    first, last = (
        mine[mine["kind"] == "B"]["start_s"].min(),
        mine[mine["kind"] == "F"]["end_s"].max(),
    )
    return float(first), float(last)


def _boundaries(events: DataFrame, run: Series) -> list[float]:
    """When stage 1 is done with each mini-batch, before the drain."""
    size = int(run["set_microbatches"])
    done = events[(events["kind"] == "B") & (events["stage"] == events["stage"].min())]
    ends = done.loc[done["microbatch"] % size == size - 1, "end_s"].sort_values()
    return ends[ends <= _steady(events)[1]].tolist() or [float(events["start_s"].min())]


def _pace(events: DataFrame, run: Series) -> float:
    """The mean time of `MINIBATCHES` mini-batches."""
    ends = _boundaries(events, run)
    if len(ends) < 2:
        return float(events["end_s"].max() - events["start_s"].min())
    return MINIBATCHES * (ends[-1] - ends[0]) / (len(ends) - 1)


def _start(events: DataFrame, run: Series, span: float) -> float:
    """The end of a mini-batch, in the middle of those that leave the stretch before the drain."""
    ends = _boundaries(events, run)
    fit = [end for end in ends if end + span <= _steady(events)[1]]
    return fit[len(fit) // 2] if fit else ends[0]


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
    return int(mine["end_s"].between(start, start + span, inclusive="right").sum())


def _title(run: Series, updates: int) -> str:
    p, n = int(run["set_stages"]), int(run["set_microbatches"])
    name = f"{style.look(run['method']).label}, P = {p}, N = {n}: {updates} updates here"
    busy = run["utilization_measured"]
    return name if busy != busy else f"{name}; workers busy {busy:.0%} of the whole run"
