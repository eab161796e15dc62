"""What the store holds of a run, and runs that a dead process left open."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from reproduce import provenance
from reproduce.errors import BadInput
from reproduce.job import StageApproximation
from reproduce.record import FLUSH_METRICS, Recorder
from reproduce.results import row
from reproduce.store import Store
from reproduce.tables import load
from reproduce.tracking import Metric, MlflowClient

from .conftest import WORKER_DIED, runs

CELL = "digits-resnet50/t1+t2"
LINUX = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


@pytest.fixture
def client(results: Path) -> MlflowClient:
    return MlflowClient(f"sqlite:///{results / 'mlflow.db'}")


def test_finished_run(cli, table: Path, results: Path, engine, client: MlflowClient) -> None:
    assert cli("run", CELL, "--table", table).exit_code == 0
    (run,) = runs(results)
    assert (run.info.status, run.info.run_name) == ("FINISHED", CELL)

    cell = load(str(table)).cell(CELL)
    expected = cell.settings.model_dump() | {
        "network": "digits-resnet50", "method": "t1+t2", "units": 107,
    }  # fmt: skip
    assert run.data.params == {key: str(value) for key, value in expected.items()}

    tags = run.data.tags
    assert (tags["cell"], tags["table"], tags["status"]) == (CELL, "small", "finished")
    assert tags["config_hash"] == cell.config_hash
    assert "torch" in json.loads(tags["versions"])
    assert {"cpu", "cores", "memory_gib", "gpus", "system"} == json.loads(tags["machine"]).keys()
    assert tags["git_dirty"] in ("true", "false", "unknown")
    for key in ("command", "git_commit", "device", "weights_sha256", "process"):
        assert tags[key]
    host = os.uname().nodename
    assert len(host) < 4 or not any(host in value for value in tags.values())

    numbers = run.data.metrics
    assert (numbers["final"], numbers["best"], numbers["steps"]) == (85.0, 88.0, 6)
    assert (numbers["tau_fwd_max"], numbers["drains"]) == (3.75, 1)
    assert (numbers["utilization_measured"], numbers["utilization_model_stages"]) == (0.75, 1.0)
    assert (numbers["memory_weights"], numbers["memory_discrepancy"]) == (100, 25)


def test_final_scores_and_texts(cli, table: Path, results: Path, engine, client) -> None:
    engine.diverge = {"t1"}
    for method in ("t1+t2", "t1"):
        cli("run", f"digits-resnet50/{method}", "--table", table)
    finished, diverged = runs(results)
    (point,) = client.get_metric_history(finished.info.run_id, "score_made_up")
    assert (point.step, point.value) == (0, 12.5)
    (file,) = client.list_artifacts(finished.info.run_id)
    text = Path(client.download_artifacts(finished.info.run_id, file.path)).read_text("utf-8")
    assert (file.path, text) == ("words.txt", "one\nzwölf\n")
    assert not client.list_artifacts(diverged.info.run_id)
    assert row(finished)["score_made_up"] == 12.5
    assert not [key for key in row(diverged) if key.startswith("score_")]


def test_curves(cli, table: Path, results: Path, engine, client: MlflowClient) -> None:
    cli("run", CELL, "--table", table)
    run_id = runs(results)[0].info.run_id
    curves = {
        key: [(point.step, point.value) for point in client.get_metric_history(run_id, key)]
        for key in ("loss", "accuracy", "tau_fwd", "tau_bkwd")
    }
    assert curves["loss"] == [(step, pytest.approx(2.0 - 0.1 * step)) for step in range(6)]
    assert curves["accuracy"] == [(3, 88.0), (6, 85.0)]
    assert curves["tau_fwd"] == [(1, 3.75)]
    assert curves["tau_bkwd"] == [(1, 0.0)]


def test_diverged_run(cli, table: Path, results: Path, engine) -> None:
    engine.diverge = {"t1+t2"}
    cli("run", CELL, "--table", table)
    (run,) = runs(results)
    assert run.info.status == "FINISHED"
    assert (run.data.tags["status"], run.data.tags["diverged_at"]) == ("diverged", "4")
    assert float(run.data.tags["last_finite_loss"]) == pytest.approx(1.7)
    assert "final" not in run.data.metrics


def test_failed_run_keeps_what_it_reached(cli, table: Path, results: Path, engine) -> None:
    engine.failures = {"t1+t2": WORKER_DIED}
    cli("run", CELL, "--table", table)
    (run,) = runs(results)
    assert run.info.status == "FAILED"
    assert run.data.tags["error"] == str(WORKER_DIED)
    assert (run.data.metrics["steps"], run.data.metrics["accuracy"]) == (4, 88.0)


def test_metrics_go_in_batches() -> None:
    batches: list[int] = []

    class Client:
        def log_batch(self, run_id: str, metrics: list[object]) -> None:
            batches.append(len(metrics))

    recorder = Recorder(Client(), "id", "accuracy")  # type: ignore[arg-type]
    for step in range(2 * FLUSH_METRICS + 10):
        recorder.on_loss(step, 1.0)
    recorder.flush()
    assert batches == [FLUSH_METRICS, FLUSH_METRICS, 10]


def test_how_well_t2_knew_the_forward_weights_is_a_curve_over_the_stages() -> None:
    logged: list[tuple[str, float, int]] = []

    class Client:
        def log_batch(self, run_id: str, metrics: list[Metric]) -> None:
            logged.extend((metric.key, metric.value, metric.step) for metric in metrics)

    recorder = Recorder(Client(), "id", "accuracy")  # type: ignore[arg-type]
    recorder.approximation(
        [StageApproximation(1, 0.25, 0.125, 9), StageApproximation(2, None, None, 0)]
    )
    recorder.flush()
    assert logged == [("t2_ratio", 0.25, 1), ("t2_distance", 0.125, 1)]


def test_tracking_uri_is_honoured(cli, table, results: Path, engine, tmp_path, monkeypatch) -> None:
    other = tmp_path / "other.db"
    (results / "mlflow.db").rename(other)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{other}")
    assert cli("run", CELL, "--table", table).exit_code == 0
    assert not (results / "mlflow.db").exists()
    assert MlflowClient(f"sqlite:///{other}").get_experiment_by_name("small") is not None


def open_run(process: str) -> str:
    """A run of the small table that is still open, as a process of that name left it."""
    store = Store("small")
    run = store.client.create_run(store.experiment_id, tags={"process": process})
    return str(run.info.run_id)


@LINUX
def test_repair_closes_the_runs_of_dead_processes_only(results: Path, client) -> None:
    ask = "import os; from reproduce.provenance import process; print(process(os.getpid()))"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    own = provenance.process(os.getpid())
    assert own is not None
    dead, alive = open_run(done.stdout.strip()), open_run(own)
    elsewhere, unknown = open_run("another-boot " + own.partition(" ")[2]), open_run("")
    assert Store("small").repair() == 1
    states = {run.info.run_id: run.info.status for run in runs(results)}
    assert states == {dead: "KILLED", alive: "RUNNING", elsewhere: "RUNNING", unknown: "RUNNING"}
    assert client.get_run(dead).data.tags["status"] == "killed"


@LINUX
def test_a_reused_pid_is_another_process() -> None:
    own = provenance.process(os.getpid())
    assert own is not None
    before, _, start = own.rpartition(" ")
    assert provenance.process_is_gone(f"{before} {int(start) - 1}")
    assert not provenance.process_is_gone(own)


def test_the_command_names_no_folder_of_the_interpreter() -> None:
    first = provenance.command().split()[0]
    assert first == Path(sys.orig_argv[0]).name


def test_the_files_of_a_run_are_found_in_a_folder_that_was_moved(
    cli, table, results: Path, engine, tmp_path: Path, monkeypatch
) -> None:
    """MLflow remembers where a store was made: it would look, and write, there."""
    cli("run", CELL, "--table", table)
    moved = tmp_path / "elsewhere"
    results.rename(moved)
    monkeypatch.setenv("REPRODUCE_RESULTS", str(moved))
    cli("run", CELL, "--table", table, "--steps", "5")
    store = Store("small")
    assert [store.text(run, "words.txt") for run in runs(moved)] == ["one\nzwölf\n"] * 2
    assert not results.exists()
    with pytest.raises(BadInput, match=r"lost its artifact gone\.txt"):
        store.text(runs(moved)[0], "gone.txt")


def test_a_lost_timeline_is_left_out_and_told(cli, table, results, engine, tmp_path) -> None:
    table.write_text(table.read_text().replace("stages = 8", "stages = 8\ntrace = true"))
    cli("grid", table)
    result = cli("results", "--table", table)
    assert result.exit_code == 0
    assert result.stderr.count("lost its artifact trace.csv") == 3


def test_an_artifact_that_cannot_be_written_fails_its_run(
    cli, table, results: Path, engine
) -> None:
    (results / "artifacts").write_text("a file in the way")
    assert cli("run", CELL, "--table", table).exit_code == 1
    (run,) = runs(results)
    assert run.info.status == "FAILED"
    assert "artifacts" in run.data.tags["error"]
