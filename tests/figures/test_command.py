"""`python -m paper_figures`, on records that are a folder of CSV files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from paper_figures import __main__ as command
from paper_figures.figures import FIGURES
from reproduce import records

from ..made import made
from . import figure_cases as cases

QUICK = ("claims", "c2", "schedule", "timeline")


@pytest.fixture
def results(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The results folder, with a table `made` in the working directory beside it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made.toml").write_text(cases.TOML)
    return results


def test_every_figure_and_the_report(
    results: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "FIGURES", {name: FIGURES[name] for name in QUICK})
    records.write(made([*cases.grid(), *cases.sweeps()]), results)
    assert command.main(["--table", "made.toml"]) == 0
    for name in QUICK:
        assert (results / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (results / "figures" / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    trace = json.loads((results / "figures" / "timeline-gpipe.json").read_text())
    assert trace["traceEvents"]
    assert capsys.readouterr().out.splitlines()[-1] == str(results / "report.html")


def test_the_same_records_give_the_same_files(results: Path) -> None:
    records.write(made(cases.grid()), results)
    paths = [results / "figures" / f"c2.{ending}" for ending in ("png", "pdf")]
    found = []
    for _ in range(2):
        assert command.main(["c2", "--table", "made.toml"]) == 0
        found.append([path.read_bytes() for path in paths])
    assert found[0] == found[1]
    assert not (results / "report.html").exists()


def error(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on standard error."""
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_no_records_say_what_to_run(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["c1"]):
        assert command.main([*arguments, "--table", "made.toml"]) == 2
        assert "make reproduce TABLE=made" in error(capsys)
    assert not (results / "report.html").exists()


def test_figures_of_formulas_need_no_records(results: Path) -> None:
    assert command.main(["utilization", "theory-trajectories", "--table", "made.toml"]) == 0
    assert (results / "figures" / "utilization.png").exists()
    assert (results / "figures" / "theory-trajectories.pdf").exists()


def test_a_figure_that_has_nothing_to_show(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is refused in a line, and one of older records does not stay behind."""
    stale = [results / "figures" / f"c5.{ending}" for ending in ("png", "pdf")]
    records.write(made([*cases.grid(), *cases.sweeps()]), results)
    assert command.main(["c5", "--table", "made.toml"]) == 0
    assert all(path.exists() for path in stale)
    records.write(made(cases.grid()), results)
    assert command.main(["c5", "--table", "made.toml"]) == 2
    assert "c5: not drawn: table made has no run of a sweep activations or cuts" in error(capsys)
    assert not any(path.exists() for path in stale)
    assert command.main(["theory-regression", "--table", "made.toml"]) == 2
    assert "python -m reproduce theory" in error(capsys)


def test_figures_of_another_table_are_not_deleted(results: Path) -> None:
    """A small table that has nothing for a figure leaves the large one's where it is."""
    records.write(made([*cases.grid(), *cases.sweeps()]), results)
    assert command.main(["c5", "--table", "made.toml"]) == 0
    drawn = [results / "figures" / f"c5.{ending}" for ending in ("png", "pdf")]
    before = [path.read_bytes() for path in drawn]
    (results.parent / "other.toml").write_text(cases.TOML)
    records.write(made(cases.grid(), "other"), results)
    assert command.main(["c5", "--table", "other.toml"]) == 2
    assert [path.read_bytes() for path in drawn] == before
    foreign = results / "figures" / "timeline.png"
    foreign.write_bytes(b"somebody's own")
    assert command.main(["timeline", "--table", "other.toml"]) == 2
    assert foreign.read_bytes() == b"somebody's own"


def test_figures_and_the_page_name_their_table(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "FIGURES", {name: FIGURES[name] for name in QUICK})
    records.write(made([*cases.grid(), *cases.sweeps()]), results)
    assert command.main(["--table", "made.toml"]) == 0
    for name in QUICK:
        with Image.open(results / "figures" / f"{name}.png") as image:
            assert image.info["Title"] == f"{name} of table made"
        pdf = (results / "figures" / f"{name}.pdf").read_bytes()
        assert f"/Title ({name} of table made)".encode() in pdf
    assert "<title>PipeMare, reproduced: made</title>" in (results / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["curve"], "unknown figure 'curve'; choose curves"),
        (["--table", "embeded"], "no table 'embeded'; choose embedded"),
    ],
)
def test_misspelt(
    results: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    assert command.main(arguments) == 2
    assert told in error(capsys)


def test_a_folder_that_cannot_be_written(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results.write_text("a file")
    assert command.main(["schedule", "--table", "made.toml"]) == 2
    assert "REPRODUCE_RESULTS" in error(capsys)


def test_runs_without_a_display(results: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "MPLBACKEND")}
    code = [sys.executable, "-m", "paper_figures", "schedule", "--table", "made.toml"]
    root = str(Path(command.__file__).parents[1])
    done = subprocess.run(
        code, env=environment | {"PYTHONPATH": root}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0].endswith("schedule.png")
