"""A measured timeline: which worker did what, from when to when.

    F forward    B backward    R recomputation    U update    W waiting for a neighbour

As a table (`trace.csv`, one line an event) and in the trace event format that chrome://tracing and
ui.perfetto.dev show (`trace.json`, one row of boxes a worker):
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

NAMES = {"F": "forward", "B": "backward", "R": "recompute", "U": "update", "W": "wait"}
"""Category of an event in the trace event format"""


class TraceEvent(NamedTuple):
    """Something that a worker did. `worker` counts from 0, times are seconds."""

    worker: int
    kind: str
    """A key of `NAMES`"""
    stage: int
    """For a wait the worker's first"""
    microbatch: int
    """For an update the last of its mini-batch, for a wait -1"""
    start_s: float
    end_s: float


def common_start(events: Iterable[TraceEvent]) -> list[TraceEvent]:
    """The events in order of time, on a clock that starts with the first of them."""
    ordered = sorted(events, key=lambda event: (event.start_s, event.worker))
    zero = ordered[0].start_s if ordered else 0.0
    return [
        event._replace(start_s=event.start_s - zero, end_s=event.end_s - zero) for event in ordered
    ]


def to_csv(events: Iterable[TraceEvent]) -> str:
    """One line an event, times in seconds to the microsecond."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(TraceEvent._fields)
    for event in events:
        *what, start, end = event
        writer.writerow([*what, f"{start:.6f}", f"{end:.6f}"])
    return text.getvalue()


def to_chrome(events: Sequence[TraceEvent]) -> dict[str, Any]:
    """The events as an object of the trace event format, times in microseconds."""
    workers = sorted({event.worker for event in events})
    names = [
        {
            "name": "thread_name",
            "ph": "M",
            "pid": 0,
            "tid": worker,
            "args": {"name": f"worker {worker}"},
        }
        for worker in workers
    ]
    return {"traceEvents": [*names, *map(_chrome_event, events)], "displayTimeUnit": "ms"}


def _chrome_event(event: TraceEvent) -> dict[str, Any]:
    number = event.microbatch if event.microbatch >= 0 else ""
    return {
        "name": f"{event.kind}{number}",
        "cat": NAMES[event.kind],
        "ph": "X",
        "ts": event.start_s * 1e6,
        "dur": (event.end_s - event.start_s) * 1e6,
        "pid": 0,
        "tid": event.worker,
        "args": {"stage": event.stage, "microbatch": event.microbatch},
    }


def texts(events: Sequence[TraceEvent]) -> dict[str, str]:
    """What is kept of a timeline with its run: file name -> content."""
    return {"trace.csv": to_csv(events), "trace.json": json.dumps(to_chrome(events))}
