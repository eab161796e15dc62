"""`run`: what reaches the engine, what comes out, and how it ends."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch

from reproduce.cells import override
from reproduce.escapes import EscapesInterception
from reproduce.report import utilization_model
from reproduce.tables import load
from reproduce.train import make_job

from .conftest import WORKER_DIED, runs

CELL = "digits-resnet50/t1+t2"

KEYS = {
    "cell": str,
    "status": str,
    "metric": {"name", "final", "best"},
    "steps": int,
    "scores": {"made_up"},
    "weights_sha256": str,
    "delays": list,
    "delay_histogram": list,
    "approximation": list,
    "utilization": {"measured", "model_workers", "model_stages"},
    "memory": {
        "weights", "gradients", "optimizer", "discrepancy", "stash", "activations_peak",
    },
    "wall_s": float,
    "loop_s": float,
    "mlflow_run_id": str,
    "diverged_at": type(None),
    "last_finite_loss": float,
    "drains": int,
    "engine": str,
    "workers": int,
    "seed": int,
}  # fmt: skip


def test_json_of_a_finished_run(cli, table: Path, results: Path, engine, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    result = cli("run", CELL, "--table", table, "--json", file)
    assert result.exit_code == 0, result.output
    found = json.loads(file.read_text())
    assert found.keys() == KEYS.keys()
    for key, kind in KEYS.items():
        if isinstance(kind, set):
            assert found[key].keys() == kind
        else:
            assert isinstance(found[key], kind), key
    assert (found["cell"], found["status"], found["steps"]) == (CELL, "finished", 6)
    assert found["metric"] == {"name": "accuracy", "final": 85.0, "best": 88.0}
    assert found["delays"][0] == {
        "stage": 1,
        "tau_fwd": 3.75,
        "tau_fwd_fraction": "15/4",
        "tau_bkwd": 0.0,
        "tau_bkwd_fraction": "0",
    }
    assert found["delays"][1]["tau_fwd"] is None
    expected = hashlib.sha256(torch.arange(3.0).numpy().tobytes()).hexdigest()
    assert found["weights_sha256"] == expected
    assert found["mlflow_run_id"] == runs(results)[0].info.run_id


def test_json_alone_on_standard_output(cli, table: Path, results: Path, engine) -> None:
    result = cli("run", CELL, "--table", table, "--json", "-")
    assert json.loads(result.stdout)["status"] == "finished"
    assert "step 0/6" in result.stderr


def test_diverged_is_a_result(cli, table: Path, results: Path, engine) -> None:
    engine.diverge = {"t1+t2"}
    result = cli("run", CELL, "--table", table, "--json", "-")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert (found["status"], found["diverged_at"], found["steps"]) == ("diverged", 4, 5)
    assert found["last_finite_loss"] == pytest.approx(1.7)
    assert found["metric"] == {"name": "accuracy", "final": None, "best": 88.0}


def test_diverged_at_once(cli, table: Path, results: Path, engine) -> None:
    engine.diverge, engine.diverge_at = {"t1+t2"}, 0
    result = cli("run", CELL, "--table", table, "--json", "-")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert (found["diverged_at"], found["last_finite_loss"]) == (0, None)
    assert found["metric"] == {"name": "accuracy", "final": None, "best": None}
    assert cli("results", "--table", table).exit_code == 0


@pytest.mark.parametrize(
    ("raised", "code", "status", "state"),
    [
        (WORKER_DIED, 1, "failed", "FAILED"),
        (RuntimeError("no space"), 1, "failed", "FAILED"),
        (KeyboardInterrupt(), 130, "killed", "KILLED"),
        (EscapesInterception("unit 3 (WeightNorm) makes a copy"), 2, "failed", "FAILED"),
    ],
)
def test_a_run_that_ends_early(
    raised: BaseException, code: int, status: str, state: str, cli, table, results, engine
) -> None:
    engine.failures = {"t1+t2": raised}
    result = cli("run", CELL, "--table", table, "--json", "-")
    assert result.exit_code == code
    found = json.loads(result.stdout)
    assert (found["status"], found["steps"]) == (status, 4)
    assert found["metric"] == {"name": "accuracy", "final": None, "best": 88.0}
    assert found["weights_sha256"] is None
    (run,) = runs(results)
    assert (run.info.status, run.data.tags["status"]) == (state, status)
    if str(raised):
        assert str(raised) in run.data.tags["error"]
        assert str(raised) in result.stderr


def test_settings_reach_the_job(table: Path) -> None:
    changes = {
        "stages": 9, "microbatches": 8, "steps": 11, "annealing_steps": 5, "decay": 0.3,
        "sync_steps": 4, "schedule": "1f1b", "seed": 3, "eval_every": 2, "divergence_loss": 7.0,
    }  # fmt: skip
    cell = override(load(str(table)).cell(CELL), changes | {"batch_size": 64, "width": 3})
    job = make_job(cell)
    assert {key: getattr(job, key) for key in changes} == changes
    assert job.method is cell.method
    assert job.task().microbatch(0).target.shape == (8,)
    assert job.network.build(0, 0).conv.out_channels == 3


def test_recompute_and_what_is_measured_reach_the_job(table: Path) -> None:
    cell = load(str(table)).cell(CELL)
    changes = {"segment": 3, "measure_discrepancy": True}
    job = make_job(override(cell, changes | {"engine": "reference"}))
    assert {key: getattr(job, key) for key in changes} == changes


def test_augmentation_and_smoothing_reach_the_task(table: Path) -> None:
    plain = load(str(table)).cell(CELL)
    task, other = (
        make_job(override(plain, changes)).task()
        for changes in ({}, {"augment": True, "label_smoothing": 0.2})
    )
    first, second = task.microbatch(0), other.microbatch(0)
    assert torch.equal(first.target, second.target)
    assert not torch.equal(first.inputs[0], second.inputs[0])
    logits = torch.randn(8, 10)
    assert task.loss((logits,), first.target) != other.loss((logits,), first.target)


def test_command_line_changes(cli, table: Path, results: Path, engine) -> None:
    options = ["--steps", 3, "--seed", 2, "--set", "lr=0.5", "--set", "optimizer=Adam"]
    result = cli("run", CELL, "--table", table, *options, "--set", "momentum=", "--json", "-")
    assert result.exit_code == 0, result.stderr
    job = engine.jobs[0]
    made = job.optimizer([torch.zeros(1, requires_grad=True)])
    assert (job.steps, job.seed, made.defaults["lr"]) == (3, 2, 0.5)
    assert isinstance(made, torch.optim.Adam)
    params = runs(results)[0].data.params
    assert (params["steps"], params["seed"], params["lr"]) == ("3", "2", "0.5")


def test_workers_and_threads_reach_the_engine(cli, table: Path, results: Path, engine) -> None:
    cli("run", CELL, "--table", table, "--workers", 3, "--set", "threads=2")
    assert engine.placed == [(3, 2)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["digits-resnet50/t1+t3"], ["digits-resnet50/t1+t3", "digits-resnet50/t1+t2"]),
        (["digits-resnet50/hogwild"], ["--table embedded"]),
        ([CELL, "--set", "stages=200"], [CELL, "stages = 200", "at most 107"]),
        ([CELL, "--set", "lrr=1"], [CELL, "lrr", "choose lr"]),
        ([CELL, "--set", "lr"], ["lr", "key=value"]),
        ([CELL, "--steps", "0"], [CELL, "steps = 0"]),
        ([CELL, "--steps", "4", "--set", "steps=5"], ["steps", "twice"]),
        ([CELL, "--steps", "many"], ["--steps", "integer"]),
        ([CELL, "--engine", "gpu"], ["--engine", "pipeline"]),
        ([CELL, "--engine", "reference", "--workers", "2"], ["workers = 2", "one process"]),
        ([CELL, "--set", "optimizer=lbfgs", "--set", "momentum="], ["LBFGS", "closure"]),
        ([CELL, "--set", "segment=9"], [CELL, "segment = 9", "at most 8"]),
        ([CELL, "--set", "segment=2", "--set", "schedule=1f1b"], ["segment = 2", "ticks"]),
        ([CELL, "--set", "measure_discrepancy=true"], ["--engine reference"]),
        ([CELL, "--set", "batch_size=4096"], [CELL, "batch_size", "training part"]),
        ([CELL, "--json", "/no/such/folder/x.json"], ["/no/such/folder/x.json", "another file"]),
        ([CELL, "--frobnicate"], ["--frobnicate"]),
    ],
)
def test_bad_input(arguments: list[str], words: list[str], cli, table, results, engine) -> None:
    result = cli("run", *arguments, "--table", table)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    for word in words:
        assert word in result.stderr
    assert engine.jobs == []
    assert runs(results) == []


def test_no_store(cli, table: Path, results: Path, engine, monkeypatch) -> None:
    monkeypatch.setenv("REPRODUCE_RESULTS", str(table / "below-a-file"))
    result = cli("run", CELL, "--table", table)
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert "REPRODUCE_RESULTS" in result.stderr
    assert engine.jobs == []


def test_utilization_model() -> None:
    cells = load("smoke").cells  # N = 4, P = 8
    gpipe, t3 = cells["digits-resnet50/gpipe"], cells["digits-resnet50/t1+t2+t3"]
    assert utilization_model(gpipe, 8, 16) == pytest.approx(4 / 11)
    assert utilization_model(cells["digits-resnet50/t1"], 8, 16) == 1.0
    # A quarter of the steps at 4/11: r / (1 + f (r - 1)) times GPipe's, r = 11/4 and f = 1/4.
    assert utilization_model(t3, 8, 16) == pytest.approx((4 / 11) * 2.75 / (1 + 0.25 * 1.75))


def test_help_of_every_command(cli) -> None:
    for command in ([], ["list"], ["run"], ["grid"], ["results"], ["schedule"]):
        result = cli(*command, "--help")
        assert result.exit_code == 0
        assert "Usage" in result.stdout


def test_schedule(cli) -> None:
    shown = ["schedule", "--stages", "3", "--microbatches", "2", "--minibatches", "1"]
    result = cli(*shown, "--method", "t1")
    assert result.exit_code == 0
    assert "tick" in result.stdout
    assert result.stdout != cli(*shown, "--method", "t1", "--schedule", "1f1b").stdout
    segments = cli(*shown, "--method", "t1", "--segment", "2").stdout
    assert "tau_recomp" in segments and "R1.0B1.0" in segments
    too_long = cli(*shown, "--method", "t1", "--segment", "4")
    assert (too_long.exit_code, too_long.stdout) == (2, "")
    assert "at most 3" in too_long.stderr
    refused = cli(*shown, "--method", "t9")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "t9" in refused.stderr
