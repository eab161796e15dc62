"""Progress with an ETA: bars on a terminal, a plain line every so often elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bars

from reproduce.cells import Cell
from reproduce.job import Observer

PLAIN_EVERY_S = 10.0
SHORT = {"accuracy": "acc"}


def cost(cell: Cell) -> float:
    """A guess at the work of one step, comparable among cells: units times samples."""
    return len(cell.network()) * cell.settings.batch_size


def clock(seconds: float | None) -> str:
    """`1:02:03`, `2:03`, or `?` for what is not known yet."""
    if seconds is None:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Progress(Observer, AbstractContextManager["Progress"]):
    """Follows a list of cells. Plain lines; a subclass draws."""

    def __init__(self, cells: Iterable[Cell], stream: TextIO) -> None:
        self.stream = stream
        self.waiting = {cell.title: cell.settings.steps * cost(cell) for cell in cells}
        self.count, self.done = len(self.waiting), 0.0
        self.started = self.shown = time.monotonic()
        self.cell: Cell | None = None

    def begin(self, cell: Cell, metric: str) -> None:
        """The next cell starts; `metric` is the name of what `on_metric` will tell."""
        self.cell, self.label = cell, SHORT.get(metric, metric)
        self.step_cost, self.step = cost(cell), 0
        self.loss: float | None = None
        self.value: float | None = None
        self.cell_started = time.monotonic()
        self.waiting.pop(cell.title, None)
        self.show(force=True)

    def on_loss(self, step: int, loss: float) -> None:
        self.step, self.loss = step + 1, loss
        self.done += self.step_cost
        self.show()

    def on_metric(self, step: int, value: float) -> None:
        self.value = value
        self.show()

    def end(self) -> None:
        """The cell is over, early or not."""
        self.cell = None

    def say(self, text: str) -> None:
        """A line that stays."""
        print(text, file=self.stream, flush=True)

    @property
    def steps(self) -> int:
        return self.cell.settings.steps if self.cell else 0

    def cell_eta(self) -> float | None:
        """Seconds left for this cell."""
        if not self.step:
            return None
        elapsed = time.monotonic() - self.cell_started
        return elapsed / self.step * (self.steps - self.step)

    def total_eta(self) -> float | None:
        """Seconds left for all of them, at the rate so far."""
        if not self.done or self.cell is None:
            return None
        left = sum(self.waiting.values()) + (self.steps - self.step) * self.step_cost
        return (time.monotonic() - self.started) / self.done * left

    def note(self) -> str:
        """Loss, metric and ETA."""
        parts = [] if self.loss is None else [f"loss {self.loss:.4g}"]
        parts += [] if self.value is None else [f"{self.label} {self.value:.1f}"]
        return "  ".join([*parts, f"ETA {clock(self.cell_eta())}"])

    def total_note(self) -> str:
        place = self.count - len(self.waiting)
        return f"cell {place}/{self.count}  ETA {clock(self.total_eta())}"

    def show(self, force: bool = False) -> None:
        if self.cell is None or not (force or time.monotonic() - self.shown > PLAIN_EVERY_S):
            return
        self.shown = time.monotonic()
        total = f"  ({self.total_note()})" if self.count > 1 else ""
        self.say(f"{self.cell.title}  step {self.step}/{self.steps}  {self.note()}{total}")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()


class BarProgress(Progress):
    """The same as bars, one for the cell and one for all."""

    def __init__(self, cells: Iterable[Cell], stream: TextIO) -> None:
        super().__init__(cells, stream)
        self.bars = Bars(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f}", markup=False),
            TextColumn("{task.fields[note]}", markup=False),
            console=Console(file=stream),
            transient=True,
        )
        self.bar = self.bars.add_task("", total=1, note="")
        self.total = self.bars.add_task(
            "all cells", total=self.count, note="", visible=self.count > 1
        )

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)
        self.bars.stop()

    def say(self, text: str) -> None:
        self.bars.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def show(self, force: bool = False) -> None:
        if self.cell is None:
            return
        self.bars.update(
            self.bar,
            description=self.cell.title,
            total=self.steps,
            completed=self.step,
            note=self.note(),
        )
        place = self.count - len(self.waiting) - 1
        self.bars.update(self.total, completed=place, note=self.total_note())


def make_progress(cells: Iterable[Cell], stream: TextIO | None = None) -> Progress:
    """Bars where `stream` (standard output) is a terminal, else plain lines."""
    stream = stream or sys.stdout
    return (BarProgress if stream.isatty() else Progress)(cells, stream)
