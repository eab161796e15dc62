"""Progress lines, bars and their arithmetic, on a clock that the test moves."""

from __future__ import annotations

import io

import pytest

import reproduce.progress
from reproduce.progress import BarProgress, Progress, clock, make_progress
from reproduce.tables import parse

from .conftest import TABLE

CELLS = list(parse(TABLE, "small").values())


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Clock:
    moved = Clock()
    monkeypatch.setattr(reproduce.progress, "time", moved)
    return moved


def test_a_plain_line_every_ten_seconds(time: Clock) -> None:
    out = io.StringIO()
    progress = Progress(CELLS[:1], out)
    progress.begin(CELLS[0], "accuracy")
    for step in range(6):
        time.now += 4
        progress.on_loss(step, 0.5)
        if step == 2:
            progress.on_metric(3, 93.1)
    assert out.getvalue().splitlines() == [
        "digits-resnet50/gpipe  step 0/6  ETA ?",
        "digits-resnet50/gpipe  step 3/6  loss 0.5  ETA 0:12",
        "digits-resnet50/gpipe  step 6/6  loss 0.5  acc 93.1  ETA 0:00",
    ]


def test_eta_over_all_cells(time: Clock) -> None:
    progress = Progress(CELLS, io.StringIO())
    progress.begin(CELLS[0], "accuracy")
    for step in range(3):
        time.now += 2
        progress.on_loss(step, 1.0)
    assert progress.cell_eta() == pytest.approx(6)  # 3 of 6 steps in 6 s
    assert progress.total_eta() == pytest.approx(30)  # 15 of 18 steps are left
    progress.end()  # it diverged: its other steps are not waited for
    progress.begin(CELLS[1], "accuracy")
    assert progress.total_eta() == pytest.approx(24)
    assert progress.total_note() == "cell 2/3  ETA 0:24"


def test_bars_on_a_terminal() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    with make_progress(CELLS, out) as progress:
        assert isinstance(progress, BarProgress)
        progress.begin(CELLS[0], "accuracy")
        progress.on_loss(0, 0.25)
        progress.bars.refresh()
        progress.say("a line [that] stays")
    assert "digits-resnet50/gpipe" in out.getvalue()
    assert "ETA" in out.getvalue()
    assert "a line [that] stays" in out.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "?"), (0, "0:00"), (70.4, "1:10"), (3723, "1:02:03")]
)
def test_clock(seconds: float | None, text: str) -> None:
    assert clock(seconds) == text
