"""When a worker did what, written down as it goes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from reproduce.trace import TraceEvent


class Timeline:
    """The events of one worker, one after another, on the machine's monotonic clock."""

    def __init__(self, worker: int, first_stage: int) -> None:
        self.events: list[TraceEvent] = []
        self._worker, self._first_stage = worker, first_stage

    @contextmanager
    def event(self, kind: str, stage: int, microbatch: int) -> Iterator[None]:
        """What happens in this context is one event; see `TraceEvent`."""
        started = time.monotonic()
        yield
        ended = time.monotonic()
        self.events.append(TraceEvent(self._worker, kind, stage, microbatch, started, ended))

    def waited(self, started: float, ended: float) -> None:
        """The worker waited for a neighbour between these times."""
        self.events.append(TraceEvent(self._worker, "W", self._first_stage, -1, started, ended))
