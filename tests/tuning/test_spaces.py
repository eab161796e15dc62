"""A space is checked against its cell when it is loaded, in one line that names the mend."""

from __future__ import annotations

from pathlib import Path

import pytest

from ablations.tuning import spaces
from reproduce.cells import Cell
from reproduce.errors import BadInput
from reproduce.tables import load, parse, shipped

from ..harness.conftest import TABLE


def cell(method: str = "t1+t2", **changes: object) -> Cell:
    text = TABLE.replace('"t1+t2"]', '"t1+t2", "t1+t2+t3"]')
    for key, value in changes.items():
        text += f"\n{key} = {value}"
    return parse(text, "small")[f"digits-resnet50/{method}"]


@pytest.mark.parametrize("table", shipped())
def test_a_space_ships_for_every_asynchronous_cell_and_holds_its_own_settings(table: str) -> None:
    for name, one in load(table).cells.items():
        if one.method.name != "gpipe":
            own = spaces.load(one).own(one)
            assert own is not None or one.variant, name  # a sweep's runs may be cut short


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("decay = { low = 0.5, high = 0.1 }", "low = 0.5 is not below high = 0.1; swap"),
        ("decay = { low = 0.5, high = 0.5 }", "is not below"),
        ("decay = { low = 0.0, high = 0.5, log = true }", "logarithmic scale has no 0"),
        ("lr = { low = -1.0, high = 0.5, log = true }", "logarithmic scale has no 0"),
        ("lr = { low = -1.0, high = 0.5 }", "at its end -1.0: .* greater than 0"),
        ("decay = { low = 0.1, high = 1.0 }", "at its end 1.0: .* less than 1"),
        ("dekay = { low = 0.1, high = 0.5 }", "unknown setting; choose decay"),
        ("decay = { low = 0.1, hi = 0.5 }", "hi = 0.5: unknown setting; choose high"),
        ("decay = { low = 0.1 }", "write { low = ..., high = ... } or"),
        ("decay = 0.1", "write { low = ..., high = ... } or"),
        ('decay = { low = "a", high = 0.5 }', "should be a valid number"),
        ("decay = { low = 0.1, high = inf }", "should be a finite number"),
        ("decay = { choices = [0.1] }", "at least 2 items"),
        ("decay = { choices = [0.1, 0.1] }", "named twice"),
        ("decay = { choices = [0.1, 2.0] }", "at its end 2.0"),
        ("decay = { choices = [0.1, 0.2], low = 0.1 }", "choices stand alone"),
        ("sync_steps = { low = 1, high = 4 }", r"t1\+t2 never reads it; remove it"),
        ("workers = { low = 1, high = 4 }", "not a hyperparameter"),
        ("seed = { low = 1, high = 4 }", "not a hyperparameter"),
        ("annealing_steps = { low = 1.5, high = 4 }", "make its ends whole"),
        ('annealing_steps = { low = 0.1, high = 0.2, of = "steps" }', "from 1 to 1 there is"),
        ('lr = { low = 0.1, high = 0.2, of = "lrr" }', "of = 'lrr': unknown setting; choose lr"),
        ('lr = { low = 0.1, high = 0.2, of = "optimizer" }', "name a positive number"),
        ('lr = { low = 0.1, high = 0.2, of = "eval_every_" }', "unknown setting"),
        ("batch_size = { low = 31, high = 32 }", "does not divide batch_size"),
    ],
)
def test_a_bad_row_is_refused(tmp_path: Path, row: str, words: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f'["t1+t2"]\n{row}\n')
    with pytest.raises(BadInput, match=rf"^mine.toml: \[t1\+t2\] .*{words}"):
        spaces.load(cell(), str(path))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[t1]\nlr = { low = 0.1, high = 1.0 }", r"no space for method 't1\+t2'; add a section"),
        ('["t1+t2"]', "no space for method"),
        ("[t1", "not TOML"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(BadInput, match=words):
        spaces.load(cell(), str(path))
    with pytest.raises(BadInput, match="cannot be read"):
        spaces.load(cell(), str(tmp_path / "none.toml"))


def test_the_synchronous_row_has_nothing_to_tune() -> None:
    with pytest.raises(BadInput, match="no space for method 'gpipe'"):
        spaces.load(cell("gpipe"))


def test_an_end_beyond_what_the_cell_can_take_is_refused() -> None:
    rows = {"sync_steps": {"low": 1, "high": 7}}
    with pytest.raises(BadInput, match=r"at its end 7: .* more than steps = 6"):
        spaces.space(cell("t1+t2+t3"), rows)


def test_ranges_scale_with_the_cell() -> None:
    rows = {
        "lr": {"low": 0.3, "high": 3.0, "log": True, "of": "lr"},
        "annealing_steps": {"low": 0.1, "high": 2.0, "log": True, "of": "steps"},
    }
    told = spaces.space(cell(), rows).told()
    assert told == {"lr": "0.003 to 0.03, logarithmic", "annealing_steps": "1 to 12, logarithmic"}


def test_a_grid_has_every_combination() -> None:
    rows = {
        "lr": {"low": 0.01, "high": 1.0, "log": True, "points": 3},
        "decay": {"choices": [0.1, 0.5]},
    }
    points = spaces.space(cell(), rows).grid()
    assert {(p["lr"], p["decay"]) for p in points} == {
        (lr, decay) for lr in (0.01, 0.1, 1.0) for decay in (0.1, 0.5)
    }


def test_the_extension_of_t1_can_be_searched() -> None:
    rows = {"t1_exponent": {"low": 0.5, "high": 1.5}, "t1_floor": {"low": 1.0, "high": 4.0}}
    assert set(spaces.space(cell(), rows).distributions) == set(rows)
