"""`python -m reproduce claims`, on records that are a folder of CSV files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from reproduce import records
from reproduce.__main__ import app

from ..made import made, run

TABLE = """
[defaults]
microbatches = 8
batch_size = 64
steps = 600
lr = 0.01
annealing_steps = 300
decay = 0.1

[network.digits-resnet50]
methods = ["gpipe", "async", "t1", "t1+t2"]
seeds = 3
width = 2
stages = 107
"""
CELLS = ("gpipe", "t1", "t1+t2")
UNFINISHED = [f"digits-resnet50/async seed {seed}" for seed in range(3)]
Cli = Callable[..., Result]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(TABLE)
    return path


@pytest.fixture
def recorded(results: Path) -> Path:
    runs = [
        run("digits-resnet50", method, seed, final=95.0)
        for method in CELLS
        for seed in range(3)
    ]  # fmt: skip
    records.write(made(runs, "small"), results)
    return results


def cli(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["claims", *map(str, arguments)])


def test_prints_and_writes(recorded: Path, table: Path) -> None:
    result = cli("--table", table)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80, "it fits a terminal"
    for number in range(1, 6):
        (title,) = (line for line in lines if line.startswith(f"C{number}  "))
        assert title
    assert "not finished: 3 of 12 runs" in result.stdout
    path = recorded / "claims.md"
    assert str(path) in result.stdout.replace("\n", "")
    text = path.read_text()
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 7 and {row.count("|") for row in rows} == {6}
    for run_id in records.read(recorded, "small").runs["mlflow_run_id"]:
        assert run_id in text
    assert f"Not finished: {', '.join(f'`{title}`' for title in UNFINISHED)}." in text
    assert "To run for more: digits-resnet50/async" in text
    assert "made CPU, 2 cores" in text and "torch 2.14.1" in text and "commit c0ffee0000" in text


def test_json(recorded: Path, table: Path, tmp_path: Path) -> None:
    path = tmp_path / "claims.json"
    assert cli("--table", table, "--json", path).exit_code == 0
    told = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert (told["table"], told["unfinished"]) == ("small", UNFINISHED)
    assert [claim["id"] for claim in told["claims"]] == ["C1", "C2", "C3", "C4", "C5"]
    gap = told["claims"][0]["findings"][0]
    assert gap["verdict"] == "not decidable at this scale"
    assert gap["interval"]["n"] == 3 and gap["value"] == 0.0
    assert len(gap["runs"]) == 6


def test_a_seed_that_lacks_is_not_finished(results: Path, table: Path) -> None:
    """A cell with one run of three is there, and two of its runs are not."""
    runs = [run("digits-resnet50", method, final=95.0) for method in (*CELLS, "async")]
    records.write(made(runs, "small"), results)
    result = cli("--table", table)
    assert "not finished: 8 of 12 runs" in result.stdout


def test_rows_of_the_table_are_waited_for(results: Path, table: Path) -> None:
    """Of the table, T1+T2 stands for PipeMare; without its runs C1 says so."""
    runs = [run("digits-resnet50", "gpipe", seed, final=95.0) for seed in range(3)]
    records.write(made(runs, "small"), results)
    assert cli("--table", table).exit_code == 0
    text = (results / "claims.md").read_text()
    lacking = "not finished: digits-resnet50/t1+t2"
    assert f"digits-resnet50: gpipe − t1+t2**: not decidable at this scale, {lacking}" in text


def test_json_alone_on_standard_output(recorded: Path, table: Path) -> None:
    result = cli("--table", table, "--json", "-")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["table"] == "small"
    assert "C1" in result.stderr


def test_no_records(results: Path, table: Path) -> None:
    result = cli("--table", table)
    assert result.exit_code == 2
    assert "make reproduce TABLE=small" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_json_that_cannot_be_written(recorded: Path, table: Path, tmp_path: Path) -> None:
    result = cli("--table", table, "--json", tmp_path / "absent" / "claims.json")
    assert result.exit_code == 2
    assert "choose another file" in result.stderr
    assert not (recorded / "claims.md").exists()
