"""Several processes on one study, and one that is killed, on the real engine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from ..harness.conftest import TABLE, runs

CELL = "digits-resnet50/t1"


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    text = TABLE.replace("workers = 2", 'engine = "reference"').replace("steps = 6", "steps = 3")
    path.write_text(text.replace("stages = 8", "stages = 2").replace('["gpipe", ', "["))
    return path


def start(table: Path, trials: int, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "ablations", "tune", CELL, "--table", str(table)]
    options = ["--trials", str(trials), "--best", "0", *more]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*command, *options], env=environment, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip


def study(results: Path) -> optuna.Study:
    return optuna.load_study(
        study_name=f"tiny: {CELL}", storage=f"sqlite:///{results / 'tuning.db'}"
    )


def test_eight_processes_with_five_trials_each(results: Path, tiny: Path) -> None:
    (results / "mlflow.db").unlink()  # they also race to make the store
    processes = [start(tiny, 5) for _ in range(8)]
    outputs = [process.communicate(timeout=400)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 8, "\n".join(outputs)
    assert not any("locked" in output for output in outputs)
    trials = study(results).get_trials()
    assert [trial.number for trial in trials] == list(range(40))
    assert {trial.state for trial in trials} <= {TrialState.COMPLETE, TrialState.PRUNED}
    assert len({trial.user_attrs["process"] for trial in trials}) > 1
    assert len({trial.user_attrs["mlflow_run_id"] for trial in trials}) == 40
    found = runs(results, "tiny tuning")
    children = [run for run in found if "trial" in run.data.tags]
    assert sorted(int(run.data.tags["trial"]) for run in children) == list(range(40))
    assert len(found) == 41 and not [run for run in found if run.info.status == "RUNNING"]


def test_killed_in_the_middle_the_same_command_keeps_the_total(results: Path, tiny: Path) -> None:
    total = 12
    first = start(tiny, total)
    assert first.stdout is not None
    for line in first.stdout:
        if "trials to do" in line:  # the study is made: looking on does not disturb it
            break
    deadline = time.monotonic() + 120
    while not _third_has_begun(results):
        assert first.poll() is None, first.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    second = start(tiny, total)
    output = second.communicate(timeout=200)[0]
    assert second.returncode == 0, output
    trials = study(results).get_trials()
    assert [trial.number for trial in trials] == list(range(total + 1))
    (failed,) = [trial for trial in trials if trial.state == TrialState.FAIL]
    assert trials[-1].params == failed.params  # cut off, and tried again with the same values
    others = {trial.state for trial in trials if trial is not failed}
    assert others <= {TrialState.COMPLETE, TrialState.PRUNED}
    assert not [run for run in runs(results, "tiny tuning") if run.info.status == "RUNNING"]


def _third_has_begun(results: Path) -> bool:
    trials = study(results).get_trials(deepcopy=False)
    return len(trials) > 2 and "decay" not in trials[2].params and "lr" in trials[2].params


def test_two_jobs_share_the_trials_of_one_command(results: Path, tiny: Path) -> None:
    process = start(tiny, 30, "--jobs", "2")  # enough for the second to come up
    output = process.communicate(timeout=200)[0]
    assert process.returncode == 0, output
    trials = study(results).get_trials()
    assert [trial.number for trial in trials] == list(range(30))
    assert {trial.state for trial in trials} <= {TrialState.COMPLETE, TrialState.PRUNED}
    assert len({trial.user_attrs["process"] for trial in trials}) == 2
