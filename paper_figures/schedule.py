"""The schedules, drawn from the functions that the engines run on."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from paper_figures.style import BACKWARD, FORWARD, SMALL, TEXT_WIDTH, canvas
from reproduce.schedule import GPipe, Schedule, Ticks, gpipe_utilization

STAGES, MICROBATCHES, TICKS = 4, 2, 21


def schedule() -> Figure:
    """GPipe's flushes above PipeMare's ticks, P = 4 and N = 2, over the same number of ticks."""
    figure = canvas(TEXT_WIDTH, 3.5)
    above, below = figure.subplots(2, 1, sharex=True)
    busy = gpipe_utilization(STAGES, MICROBATCHES)
    _draw(above, GPipe(STAGES, MICROBATCHES))
    above.set_title(
        f"GPipe: a flush after every mini-batch, N/(N+P−1) = {busy:.0%} of the ticks busy",
        loc="left",
    )
    _draw(below, Ticks(STAGES, MICROBATCHES))
    below.set_title(
        "PipeMare: no flush; a number is the micro-batch, .t the updates in the weights it reads",
        loc="left",
    )
    below.set_xlabel("tick")
    patches = [Patch(color=FORWARD, label="forward"), Patch(color=BACKWARD, label="backward")]
    figure.legend(handles=patches, loc="outside upper right", ncols=2)
    return figure


def _draw(axes: Axes, plan: Schedule) -> None:
    """One row a stage; the upper half of a cell is its forward, the lower half its backward."""
    for stage in range(1, plan.stages + 1):
        for tick in range(TICKS):
            forward = plan.forward_at(tick, stage)
            backward = plan.backward_at(tick, stage)
            if forward is not None and forward >= 0:
                _cell(axes, tick, stage, 0.5, forward, plan.forward_version(forward, stage))
            if backward is not None and backward >= 0:
                _cell(axes, tick, stage, 0.0, backward, plan.backward_version(backward))
    axes.set_xlim(0, TICKS)
    axes.set_ylim(plan.stages + 1, 1)
    axes.set_yticks([stage + 0.5 for stage in range(1, plan.stages + 1)])
    axes.set_yticklabels([f"stage {stage}" for stage in range(1, plan.stages + 1)])
    axes.set_xticks([t + 0.5 for t in range(0, TICKS, 5)], [str(t) for t in range(0, TICKS, 5)])
    axes.tick_params(length=0)
    axes.grid(False)


def _cell(axes: Axes, tick: int, stage: int, low: float, microbatch: int, version: int) -> None:
    """Mini-batches alternate in shade, so that an update can be seen as a change of shade."""
    colour = FORWARD if low else BACKWARD
    alpha = 0.85 if (microbatch // MICROBATCHES) % 2 == 0 else 0.5
    top = stage + (0.04 if low else 0.52)
    axes.add_patch(Rectangle((tick + 0.03, top), 0.94, 0.44, color=colour, alpha=alpha, lw=0))
    axes.text(
        tick + 0.5, top + 0.23, f"{microbatch}.{version}", ha="center", va="center", fontsize=SMALL
    )
