"""Tables: what is accepted, what is refused and in which words, and what a configuration is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from reproduce.cells import Cell, override, parse_assignment
from reproduce.errors import BadInput
from reproduce.methods import METHODS
from reproduce.tables import load, parse

from .conftest import TABLE

EDIT = {
    "unknown key": ("stages = 8", "stagse = 8", ["stagse", "stages"]),
    "a model's key on another model": ("width = 2", "dim = 2", ["dim", "width"]),
    "missing": ("stages = 8\n", "", ["stages", "missing"]),
    "not a number": ("lr = 0.01", 'lr = "fast"', ["lr", "'fast'", "number"]),
    "not finite": ("lr = 0.01", "lr = nan", ["lr", "finite"]),
    "a bool for a count": ("stages = 8", "stages = true", ["stages", "True", "integer"]),
    "no learning": ("lr = 0.01", "lr = 0", ["lr", "greater than 0"]),
    "N does not divide": ("batches = 4", "batches = 5", ["microbatches = 5", "32", "4 or 8"]),
    "K_w > P": ("workers = 2", "workers = 9", ["workers = 9", "at most 8"]),
    "P > units": ("stages = 8", "stages = 108", ["stages = 108", "107 units", "at most 107"]),
    "D = 1": ("decay = 0.1", "decay = 1.0", ["decay = 1.0", "less than 1"]),
    "D = 0": ("decay = 0.1", "decay = 0", ["decay = 0", "greater than 0"]),
    "D missing": ("decay = 0.1", "", ["decay: missing", "t1+t2"]),
    "K missing": ("annealing_steps = 8", "", ["annealing_steps: missing", "t1"]),
    "unknown method": ('"t1+t2"]', '"t1+t22"]', ["methods", "t1+t22", "choose t1+t2"]),
    "no method": ('methods = ["gpipe", "t1", "t1+t2"]', "", ["methods", "gpipe"]),
    "twice": ('["gpipe",', '["gpipe", "gpipe",', ["/gpipe", "methods", "twice", "remove"]),
    "unknown task": ("digits-res", "digist-res", ["digist-resnet50", "task", "digits"]),
    "unknown model": ("resnet50", "resnet51", ["digits-resnet51", "model", "resnet50"]),
    "unfit model": ("digits-", "phrases-", ["phrases-resnet50", "images", "transformer"]),
    "unknown optimizer": ("lr = ", 'optimizer = "sdg"\nlr = ', ["optimizer", "sdg", "sgd"]),
    "option it lacks": ("lr = ", 'optimizer = "Adam"\nlr = ', ["momentum = 0.9", "Adam", "leave"]),
    "unknown choice": ("lr = ", 'schedule = "tick"\nlr = ', ["schedule", "'ticks' or '1f1b'"]),
    "a batch norm of one": ("size = 32", "size = 4", ["batch norm", "lower microbatches"]),
    "own settings of no row": (
        "[defaults]",
        '[cell."digits-resnet50/t2"]\n[defaults]',
        ["no such"],
    ),
    "unknown section": ("[defaults]", "[default]", ["[default]", "choose defaults"]),
    "not TOML": ("stages = 8", "stages = ", ["not TOML", "line"]),
    "section twice": ("[defaults]", "[network.digits-resnet50]\n[defaults]", ["not TOML", "line"]),
}


@pytest.mark.parametrize("case", EDIT)
def test_refusal(case: str, tmp_path: Path, cli) -> None:
    old, new, words = EDIT[case]
    assert old in TABLE
    path = tmp_path / "odd.toml"
    path.write_text(TABLE.replace(old, new))
    result = cli("list", "--table", path)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    for word in ["odd.toml", *words]:
        assert word in result.stderr


def test_warmup_longer_than_the_run() -> None:
    text = TABLE.replace('"t1+t2"]', '"t1+t2+t3"]').replace("sync_steps = 2", "sync_steps = 7")
    with pytest.raises(BadInput, match=r"t1\+t2\+t3: sync_steps = 7: more than steps = 6"):
        parse(text, "small")
    parse(text.replace('"t1+t2+t3"', '"t1+t2"'), "small")  # nobody reads W there


@pytest.mark.parametrize("table", ["no-such", ".", "embeded"])
def test_no_table(table: str, cli) -> None:
    result = cli("grid", table)
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert "embedded" in result.stderr


def test_embedded_grid() -> None:
    cells = load("embedded").cells
    deterministic = [name for name, row in METHODS.items() if not row.lockfree]
    assert {f"digits-resnet50/{method}" for method in deterministic} <= cells.keys()
    assert {f"digits-resnet152/{method}" for method in ("gpipe", "t1", "t1+t2")} <= cells.keys()
    assert cells["digits-resnet50/gpipe"].settings.stages == 107
    assert cells["digits-resnet152/gpipe"].settings.stages == 150


def test_smoke_has_every_method() -> None:
    assert {cell.method.name for cell in load("smoke").cells.values()} == METHODS.keys()


@pytest.mark.parametrize("table", ["embedded", "smoke"])
def test_rows_of_a_network_differ_in_the_method_alone(table: str) -> None:
    settings: dict[str, object] = {}
    for cell in load(table).cells.values():
        point = f"{cell.network_name}@{cell.variant}"
        assert settings.setdefault(point, cell.settings) == cell.settings


def test_own_settings_are_one_rows_alone(cli, tmp_path: Path) -> None:
    text = TABLE + '[cell."digits-resnet50/t1"]\nlr = 0.5\n'
    cells = parse(text, "small")
    assert [cell.settings.lr for cell in cells.values()] == [0.01, 0.5, 0.01]
    path = tmp_path / "own.toml"
    path.write_text(text)
    rows = cli("list", "--table", path).stdout.splitlines()[-3:]
    assert [row.rpartition("[")[2] for row in rows] == ["lr 0.01]", "lr 0.5]", "lr 0.01]"]


def cell(method: str = "t1+t2") -> Cell:
    return parse(TABLE, "small")[f"digits-resnet50/{method}"]


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"workers": 1}, True),
        ({"threads": 2}, True),
        ({"sync_steps": 5}, True),
        ({"optimizer": "SGD"}, True),
        ({"weight_decay": 0.1}, False),
        ({"decay": 0.2}, False),
        ({"annealing_steps": 9}, False),
        ({"seed": 1}, False),
        ({"engine": "reference"}, False),
        ({"schedule": "1f1b"}, False),
        ({"width": 3}, False),
        ({"augment": True}, False),
    ],
)
def test_what_a_configuration_is(change: dict[str, object], same: bool) -> None:
    assert (override(cell(), change).config_hash == cell().config_hash) is same


@pytest.mark.parametrize("key", ["decay", "annealing_steps", "sync_steps", "schedule"])
def test_settings_a_method_never_reads_do_not_make_it_another(key: str) -> None:
    value = {"decay": 0.5, "schedule": "1f1b"}.get(key, 4)
    assert override(cell("gpipe"), {key: value}).config_hash == cell("gpipe").config_hash


def test_methods_are_different_configurations() -> None:
    assert len({cell(method).config_hash for method in ("gpipe", "t1", "t1+t2")}) == 3


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("lr=1e-3", 0.001),
        ("lr=.5", 0.5),
        ("steps = 3", 3),
        ("augment=True", True),
        ("optimizer=adam", "adam"),
        ("betas=[0.9, 0.98]", [0.9, 0.98]),
        ("momentum=", None),
    ],
)
def test_assignment(text: str, value: object) -> None:
    assert parse_assignment(text)[1] == value


def test_none_takes_a_setting_back() -> None:
    changed = override(cell(), {"optimizer": "adam", "momentum": None})
    assert changed.settings.momentum is None


def test_assignment_without_a_value() -> None:
    with pytest.raises(BadInput, match="key=value"):
        parse_assignment("lr")


SWEPT = (
    TABLE
    + """
[sweep.depth]
network = "digits-resnet50"
methods = ["t1", "t1+t2"]
seeds = 2
steps = 5
over = { stages = [4, 8], lr = [0.1] }
points = [{ batch_size = 16 }, { batch_size = 32, microbatches = 8 }]
"""
)


def test_a_sweep_is_every_combination_on_top_of_its_network() -> None:
    cells = {name: cell for name, cell in parse(SWEPT, "odd").items() if cell.sweep}
    assert len(cells) == 2 * 1 * 2 * 2
    name = "digits-resnet50@depth:stages=4,lr=0.1,batch_size=32,microbatches=8/t1"
    cell = cells[name]
    assert (cell.name, cell.network_name, cell.sweep) == (name, "digits-resnet50", "depth")
    s = cell.settings
    assert (s.stages, s.lr, s.batch_size, s.microbatches, s.steps) == (4, 0.1, 32, 8, 5)
    assert s.width == parse(TABLE, "odd")["digits-resnet50/t1"].settings.width
    assert override(cell, {"steps": 6}).name == name


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('network = "digits-resnet50"\n', "", ["sweep depth", "network: missing"]),
        ("[4, 8]", "8", ["sweep depth", "over = "]),
        ("[4, 8]", "[]", ["sweep depth", "over = "]),
        ("points = [", "points = 3 # [", ["sweep depth", "points = "]),
        ("[4, 8]", "[4, 4]", ["stages=4", "methods", "twice"]),
        ("[4, 8]", "[4, 108]", ["stages = 108", "stages=108", "at most 107"]),
        ("seeds = 2", "seeds = 0", ["seeds = 0", "1 or more"]),
        ("seeds = 2", "seeds = true", ["seeds = True", "whole number"]),
    ],
)
def test_a_sweep_that_cannot_be(old: str, new: str, words: list[str]) -> None:
    assert old in SWEPT
    with pytest.raises(BadInput) as caught:
        parse(SWEPT.replace(old, new), "odd")
    for word in words:
        assert word in str(caught.value)


def test_seeds_are_runs_of_one_cell(tmp_path: Path) -> None:
    path = tmp_path / "odd.toml"
    path.write_text(SWEPT.replace("seeds = 2", "seeds = 2\nseed = 5"))
    table = load(str(path))
    runs = [run for run in table.runs() if run.sweep]
    assert [run.settings.seed for run in runs[:2]] == [5, 6]
    assert runs[0].name == runs[1].name
    assert runs[0].title != runs[1].title
    assert len({run.config_hash for run in table.runs()}) == len(table.runs())
    assert len(table.narrowed("*/t1", 3).runs()) == 3 * (1 + 4)
    with pytest.raises(BadInput, match="matches no cell"):
        table.narrowed("*/t9")


def test_what_a_method_leaves_at_its_default_is_not_part_of_a_configuration() -> None:
    """So that a field added to the methods does not run everybody's finished cells again."""
    cell = parse(TABLE, "odd")["digits-resnet50/t1"]
    fields = {"summary": "in other words", "warmup": False, "correction": None}
    assert replace(cell, method=replace(cell.method, **fields)).config_hash == cell.config_hash
    assert replace(cell, method=replace(cell.method, stash=True)).config_hash != cell.config_hash
