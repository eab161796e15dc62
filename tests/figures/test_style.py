"""One colour and one marker a method, and nothing too small to read."""

from __future__ import annotations

import pytest
from matplotlib.text import Text

from paper_figures import style
from paper_figures.figures import FIGURES
from paper_figures.material import Missing
from reproduce.methods import METHODS

from . import figure_cases as cases


def test_every_method_has_a_look_of_its_own() -> None:
    looks = [style.look(method) for method in METHODS]
    assert set(METHODS) <= set(style.LOOKS)
    assert len({look.colour for look in looks}) == len(looks)
    assert len({look.marker for look in looks}) == len(looks)


def test_an_unknown_method_has_the_same_further_look_each_time() -> None:
    mine = style.look("averaged")
    assert mine == style.look("averaged")
    assert mine.label == "averaged"
    assert mine.colour not in {look.colour for look in style.LOOKS.values()}
    assert mine.marker not in {look.marker for look in style.LOOKS.values()}


def test_methods_come_in_one_order_and_once() -> None:
    assert style.in_order(["mine", "t1", "gpipe", "t1", "a"]) == ["gpipe", "t1", "a", "mine"]


@pytest.mark.parametrize("name", FIGURES)
def test_print_size(name: str) -> None:
    """Text width or column width, and 6.5 points or more."""
    try:
        figure = FIGURES[name].draw(cases.full())
    except Missing:
        assert name == "theory-regression"
        return
    assert figure.get_figwidth() in (style.COLUMN_WIDTH, style.TEXT_WIDTH)
    for text in figure.findobj(Text):
        if text.get_text().strip():
            assert text.get_fontsize() >= style.SMALL, text.get_text()


def test_a_note_makes_room_for_itself() -> None:
    figure = style.canvas(style.TEXT_WIDTH, 2.0)
    figure.subplots()
    style.note(figure, ["one line", "word " * 60])
    assert figure.get_figheight() > 2.3
    figure.draw_without_rendering()
    lowest = min(axes.get_tightbbox().y0 for axes in figure.axes)
    (note,) = figure.texts
    assert note.get_window_extent().y1 <= lowest
