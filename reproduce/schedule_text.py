"""A schedule as text: who does what in each tick, what it reads, and the delays that follow."""

from __future__ import annotations

from fractions import Fraction

from reproduce.methods import Method
from reproduce.schedule import SCHEDULES, Schedule, gpipe_utilization

_MOST_STAGES_DRAWN = 12
_LONG_RUN = 10**9


def render(
    method: Method,
    stages: int,
    microbatches: int,
    minibatches: int = 4,
    schedule: str = "ticks",
    segment: int = 0,
) -> str:
    """The schedule of a method, readable.

    A cell `F5.2` is the forward of micro-batch 5 on weights after 2 updates, `R5.2` its
    recomputation (PipeMare Recompute with `segment` stages a segment), `B5.2` its backward.

    Raises:
        KeyError: an unknown schedule.
        ValueError: a segment that the schedule cannot have.
    """
    runs_on = "gpipe" if method.schedule == "gpipe" else schedule
    plan = SCHEDULES[runs_on](stages, microbatches, segment)
    pipelined = SCHEDULES[schedule](stages, microbatches)
    lines = [
        f"{method.name}: {method.summary}; schedule {runs_on}, P = {stages}, N = {microbatches}"
        + (f", S = {segment}" if segment else ""),
        "",
        *_drawing(plan, method.stash and method.schedule == "pipeline", minibatches),
        "",
        "stage  tau_fwd            tau_bkwd           "
        + ("tau_recomp         inputs kept  " if segment else "")
        + "in flight  old versions kept",
    ]
    for stage in range(1, stages + 1):
        tau = Fraction(0) if method.synchronous else pipelined.tau(stage)
        tau_bkwd = tau if method.stash else Fraction(0)
        kept = plan.stash_versions(stage, _LONG_RUN) if method.stash and not method.delays else 0
        note = "up to the longest random delay" if method.delays else str(kept)
        delays = f"{_number(tau):17}  {_number(tau_bkwd):17}"
        if segment:
            tau_recomp = plan.tau_recomp(stage)
            read = tau if method.stash else tau_recomp
            text = "not recomputed" if tau_recomp is None or read is None else _number(read)
            delays += f"  {text:17}  {plan.inputs_kept(stage):11}"
        lines.append(f"{stage:5}  {delays}  {plan.in_flight(stage):9}  {note}")
    utilization = 1.0 if method.schedule == "pipeline" else gpipe_utilization(stages, microbatches)
    lines += ["", f"utilization with one device a stage: {utilization:.3f}"]
    if method.delays:
        lines.append("delays are drawn at random; tau is the mean that they are drawn around")
    if method.warmup:
        lines.append("the synchronous warm-up before it runs on the gpipe schedule")
    return "\n".join(lines)


def _number(value: Fraction) -> str:
    return f"{value} = {float(value):.3g}" if value.denominator > 1 else str(value)


def _drawing(plan: Schedule, stash: bool, minibatches: int) -> list[str]:
    """One line a stage, one column a tick."""
    total = minibatches * plan.microbatches
    if plan.stages > _MOST_STAGES_DRAWN:
        return [f"(drawn for up to {_MOST_STAGES_DRAWN} stages)"]
    ticks = range(plan.ticks(total))
    rows = [["tick", *map(str, ticks)]]
    for stage in range(1, plan.stages + 1):
        cells = [_cell(plan, stage, tick, total, stash) for tick in ticks]
        rows.append([f"stage {stage}", *cells])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    pad = (
        " ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows
    )
    return [line.rstrip() for line in pad]


def _cell(plan: Schedule, stage: int, tick: int, total: int, stash: bool) -> str:
    text = ""
    forward, backward = plan.forward_at(tick, stage), plan.backward_at(tick, stage)
    if forward is not None and 0 <= forward < total:
        text += f"F{forward}.{plan.forward_version(forward, stage)}"
    recompute = plan.recompute_at(tick, stage)
    if recompute is not None and 0 <= recompute < total:
        old = plan.forward_version(recompute, stage)
        text += f"R{recompute}.{old if stash else plan.recompute_version(recompute, stage)}"
    if backward is not None and 0 <= backward < total:
        read = plan.forward_version(backward, stage) if stash else plan.backward_version(backward)
        text += f"B{backward}.{read}"
    return text or "·"
