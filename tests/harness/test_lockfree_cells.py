"""Lock-free rows and timelines in the harness: what is run, recorded and refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reproduce.cells import Cell, override
from reproduce.report import utilization_model
from reproduce.tables import load
from reproduce.tracking import MlflowClient
from reproduce.train import make_job

from .conftest import runs

ROW, T1 = "digits-resnet50/hogwild-lockfree", "digits-resnet50/hogwild-lockfree+t1"


@pytest.fixture
def lockfree(table: Path) -> Path:
    """The small table with the lock-free rows."""
    text = table.read_text().replace('"t1",', '"t1", "hogwild-lockfree", "hogwild-lockfree+t1",')
    table.write_text(text.replace("[network", "lockfree_workers = 2\n\n[network"))
    return table


def client(results: Path) -> MlflowClient:
    return MlflowClient(f"sqlite:///{results / 'mlflow.db'}")


def test_a_lock_free_cell_from_end_to_end(cli, lockfree: Path, results: Path) -> None:
    result = cli("run", T1, "--table", lockfree, "--set", "lockfree_workers=3", "--json", "-")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["status"], found["steps"], found["workers"]) == ("finished", 6, 3)
    histogram = {entry["delay"]: entry["count"] for entry in found["delay_histogram"]}
    assert sum(histogram.values()) == 6
    (tau,) = {d["tau_fwd"] for d in found["delays"]}  # of the last 3: the first 3 fill the run
    assert min(histogram) <= tau <= max(histogram)
    assert 3 * tau <= sum(delay * count for delay, count in histogram.items())
    assert found["utilization"]["model_workers"] == found["utilization"]["model_stages"] == 1.0
    assert found["memory"]["stash"] == 3 * found["memory"]["weights"]
    (run,) = runs(results)
    points = client(results).get_metric_history(run.info.run_id, "delay_count")
    assert {point.step: point.value for point in points} == histogram
    assert run.data.params["lockfree_workers"] == "3"


def test_other_rows_have_no_histogram(cli, table: Path, results: Path, engine) -> None:
    result = cli("run", "digits-resnet50/t1", "--table", table, "--json", "-")
    assert json.loads(result.stdout)["delay_histogram"] == []
    assert "delay_count" not in runs(results)[0].data.metrics


def test_a_timeline_is_kept_with_the_run(cli, table: Path, results: Path) -> None:
    options = ["--set", "trace=true", "--steps", "2"]
    assert cli("run", "digits-resnet50/t1+t2", "--table", table, *options).exit_code == 0
    (run,) = runs(results)
    files = {file.path for file in client(results).list_artifacts(run.info.run_id)}
    assert files == {"trace.csv", "trace.json"}
    (path,) = results.rglob("trace.csv")
    header, *lines = path.read_text().splitlines()
    assert header == "worker,kind,stage,microbatch,start_s,end_s"
    forwards = [line for line in lines if line.split(",")[1] == "F"]
    assert len(forwards) == 2 * 4 * 8  # steps, micro-batches, stages


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([ROW, "--engine", "reference"], ["not deterministic", "--engine pipeline"]),
        ([ROW, "--workers", "2"], ["workers = 2", "lockfree_workers"]),
        ([ROW, "--set", "lockfree_workers=0"], ["lockfree_workers = 0"]),
        ([ROW, "--set", "trace=true"], ["trace = true", "hogwild-lockfree"]),
        ([ROW, "--set", "segment=2"], ["segment = 2", "segment to 0"]),
        (
            [ROW, "--set", "optimizer=nadam", "--set", "momentum="],
            ["NAdam", "mu_product", "choose sgd"],
        ),
        (
            ["digits-resnet50/t1", "--set", "trace=true", "--engine", "reference"],
            ["trace = true", "reference engine"],
        ),
    ],
)
def test_bad_input(arguments: list[str], words: list[str], cli, lockfree, results, engine) -> None:
    result = cli("run", *arguments, "--table", lockfree)
    assert (result.exit_code, result.stdout) == (2, "")
    assert len(result.stderr.splitlines()) == 1
    for word in words:
        assert word in result.stderr
    assert engine.jobs == []
    assert runs(results) == []


def test_there_is_no_schedule_to_show(cli) -> None:
    options = ["--stages", 3, "--microbatches", 2]
    result = cli("schedule", "--method", "hogwild-lockfree", *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert len(result.stderr.splitlines()) == 1
    assert "no schedule" in result.stderr


def cell(lockfree: Path, name: str, **changes: object) -> Cell:
    return override(load(str(lockfree)).cell(name), changes)


def test_the_number_of_sharing_workers_decides_the_result(lockfree: Path) -> None:
    three = cell(lockfree, ROW, lockfree_workers=3)
    assert make_job(three).lockfree_workers == three.workers == 3
    assert three.config_hash != cell(lockfree, ROW).config_hash
    assert cell(lockfree, ROW, workers=7).config_hash == cell(lockfree, ROW).config_hash
    t1, other = (cell(lockfree, "digits-resnet50/t1", lockfree_workers=k) for k in (2, 3))
    assert t1.config_hash == other.config_hash
    assert utilization_model(three, 3, 6) == 1.0


def test_pipeline_workers_do_not_bind_it(lockfree: Path) -> None:
    """`workers` of the table's defaults may be more than a lock-free row has stages."""
    assert cell(lockfree, ROW, workers=50).workers == 2


def test_a_timeline_asked_for_later_is_another_run(table: Path) -> None:
    """A finished run without one has none to give."""
    plain, traced = (cell(table, "digits-resnet50/t1", trace=value) for value in (False, True))
    assert plain.config_hash != traced.config_hash
    assert make_job(traced).trace
