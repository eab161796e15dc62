"""`grid` runs what is not finished, and `results` reads it back."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

from reproduce.tracking import MlflowClient

from .conftest import WORKER_DIED, runs

ALL = ["gpipe", "t1", "t1+t2"]


def test_every_cell_once_then_nothing(cli, table: Path, results: Path, engine) -> None:
    first = cli("grid", table)
    assert first.exit_code == 0, first.output
    assert engine.methods == ALL
    again = cli("grid", table)
    assert again.exit_code == 0
    assert engine.methods == ALL
    assert "nothing to do" in again.stdout
    assert str(results / "mlflow.db") in again.stdout


def test_a_failed_cell_does_not_stop_the_next(cli, table: Path, results: Path, engine) -> None:
    engine.failures = {"t1": WORKER_DIED}
    result = cli("grid", table)
    assert result.exit_code == 1
    assert engine.methods == ALL
    assert str(WORKER_DIED) in result.stdout
    assert "failed: digits-resnet50/t1\n" in result.stdout
    engine.failures = {}
    assert cli("grid", table).exit_code == 0
    assert engine.methods == [*ALL, "t1"]


def test_a_diverged_cell_is_finished(cli, table: Path, results: Path, engine) -> None:
    engine.diverge = {"t1"}
    assert cli("grid", table).exit_code == 0
    assert cli("grid", table).exit_code == 0
    assert engine.methods == ALL


def test_an_interrupt_stops_and_the_next_grid_goes_on(cli, table, results: Path, engine) -> None:
    engine.failures = {"t1": KeyboardInterrupt()}
    assert cli("grid", table).exit_code == 130
    assert engine.methods == ["gpipe", "t1"]
    assert [run.info.status for run in runs(results)] == ["FINISHED", "KILLED"]
    engine.failures = {}
    assert cli("grid", table).exit_code == 0
    assert engine.methods == ["gpipe", "t1", "t1", "t1+t2"]


def test_only_the_cells_that_a_change_touches_run_again(cli, table, results, engine) -> None:
    cli("grid", table)
    table.write_text(table.read_text().replace("decay = 0.1", "decay = 0.2"))
    cli("grid", table)
    assert engine.methods == [*ALL, "t1", "t1+t2"]


def test_other_workers_are_no_other_cell(cli, table, results, engine) -> None:
    cli("grid", table)
    table.write_text(table.read_text().replace("workers = 2", "workers = 3"))
    cli("grid", table)
    assert engine.methods == ALL


def test_a_single_run_counts_for_the_grid(cli, table, results, engine) -> None:
    cli("run", "digits-resnet50/t1", "--table", table)
    cli("run", "digits-resnet50/gpipe", "--table", table, "--steps", 3)
    cli("grid", table)
    assert engine.methods == ["t1", "gpipe", "gpipe", "t1+t2"]


def test_bad_input_stops_the_grid_before_any_cell(cli, table, results, engine) -> None:
    table.write_text(table.read_text() + '[cell."digits-resnet50/t1+t2"]\nbatch_size = 4096\n')
    result = cli("grid", table)
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert "digits-resnet50/t1+t2" in result.stderr
    assert engine.jobs == []


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_results_are_one_row_a_cell_of_the_newest_runs(cli, table, results, engine) -> None:
    engine.diverge = {"t1"}
    cli("grid", table)
    cli("run", "digits-resnet50/gpipe", "--table", table)
    (results / "small.csv").unlink()
    assert cli("results", "--table", table).exit_code == 0
    rows = read(results / "small.csv")
    assert [row["cell"] for row in rows] == [f"digits-resnet50/{method}" for method in ALL]
    gpipe, t1, _ = rows
    assert gpipe["mlflow_run_id"] == runs(results)[-1].info.run_id
    assert (gpipe["final"], gpipe["diverged_at"], gpipe["steps"]) == ("85.0", "", "6")
    assert (t1["status"], t1["final"], t1["diverged_at"]) == ("diverged", "", "4")
    assert (t1["network"], t1["method"], t1["units"]) == ("digits-resnet50", "t1", "107")
    assert (t1["set_stages"], t1["set_betas"], t1["memory_weights"]) == ("8", "", "100")


def test_markdown_is_the_table_alone(cli, table, results, engine) -> None:
    engine.diverge = {"t1"}
    cli("grid", table)
    lines = cli("results", "--table", table, "--markdown").stdout.splitlines()
    header, rule, gpipe, t1, _ = [[c.strip() for c in line.split("|")[1:-1]] for line in lines]
    assert set("".join(rule)) == {"-"}
    found = dict(zip(header, t1, strict=True))
    assert (found["cell"], found["final"], found["diverged at"]) == ("digits-resnet50/t1", "–", "4")
    assert dict(zip(header, gpipe, strict=True))["final"] == "85.00"
    assert dict(zip(header, gpipe, strict=True))["τ max"] == "3.75"


def test_results_of_a_table_without_any(cli, table, results, engine) -> None:
    result = cli("results", "--table", table)
    assert result.exit_code == 2
    assert "make reproduce TABLE=small" in result.stderr


def test_a_part_of_a_grid_leaves_the_records_of_the_rest(cli, table, results, engine) -> None:
    """`--only` and `--seeds` once rewrote the table's CSV with the chosen cells alone."""
    cli("grid", table)
    assert cli("grid", table, "--only", "*/t1", "--seeds", "2").exit_code == 0
    assert engine.methods == [*ALL, "t1"]
    rows = [(row["method"], row["seed"]) for row in read(results / "small.csv")]
    assert rows == [("gpipe", "0"), ("t1", "0"), ("t1", "1"), ("t1+t2", "0")]


def test_what_a_table_lacks_is_counted_in_runs(cli, table, results, engine) -> None:
    table.write_text(table.read_text().replace("stages = 8", "stages = 8\nseeds = 2"))
    cli("grid", table, "--only", "*/gpipe", "--seeds", "1")
    assert "not finished: 5 of 6 runs" in cli("results", "--table", table).stdout


def test_a_grid_of_failures_has_nothing_to_show(cli, table, results, engine) -> None:
    engine.failures = dict.fromkeys(ALL, WORKER_DIED)
    result = cli("grid", table)
    assert result.exit_code == 1
    assert "failed: " in result.stdout


def without_store(results: Path) -> None:
    (results / "mlflow.db").unlink()


def test_files_alone_are_read_and_no_store_is_made(cli, table, results, engine) -> None:
    cli("grid", table)
    told = cli("results", "--table", table, "--markdown").stdout
    without_store(results)
    assert cli("results", "--table", table, "--markdown").stdout == told
    assert cli("results", "--table", table).exit_code == 0
    assert not (results / "mlflow.db").exists()


def test_records_from_elsewhere_are_not_overwritten(
    cli, table, results, engine, empty_store, tmp_path, monkeypatch
) -> None:
    """A folder of files alone, as it is committed, in which somebody then runs a cell."""
    cli("grid", table)
    kept = (results / "small.csv").read_text()
    other = tmp_path / "other"
    other.mkdir()
    for path in results.glob("*.csv"):
        shutil.copy(path, other)
    shutil.copy(empty_store, other)
    monkeypatch.setenv("REPRODUCE_RESULTS", str(other))
    cli("run", "digits-resnet50/t1", "--table", table, "--steps", "5")
    assert cli("results", "--table", table).exit_code == 0
    cli("run", "digits-resnet50/t1", "--table", table)
    result = cli("results", "--table", table)
    assert result.exit_code == 2
    assert "small.csv holds 3 runs" in result.stderr
    assert (other / "small.csv").read_text() == kept


def test_a_deleted_run_leaves_the_records_and_runs_again(cli, table, results, engine) -> None:
    cli("grid", table)
    client = MlflowClient(f"sqlite:///{results / 'mlflow.db'}")
    client.delete_run(runs(results)[1].info.run_id)
    assert [row["method"] for row in rows_now(cli, table, results)] == ["gpipe", "t1+t2"]
    cli("grid", table)
    assert engine.methods == [*ALL, "t1"]
    assert [row["method"] for row in read(results / "small.csv")] == ALL


def rows_now(cli, table: Path, results: Path) -> list[dict[str, str]]:
    cli("results", "--table", table)
    return read(results / "small.csv")


def test_an_older_version_s_file_is_named(cli, table, results, engine) -> None:
    without_store(results)
    (results / "small.csv").write_text("cell,status\ndigits-resnet50/t1,finished\n")
    result = cli("results", "--table", table)
    assert result.exit_code == 2
    assert "older version" in result.stderr and "make reproduce TABLE=small" in result.stderr


def test_a_table_by_the_name_of_another_file_of_the_results(cli, table) -> None:
    table.rename(table.with_name("theory.toml"))
    result = cli("list", "--table", table.with_name("theory.toml"))
    assert result.exit_code == 2
    assert "rename it" in result.stderr
