"""One trial: an ordinary run of the cell with other settings, told to Optuna as it goes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import optuna
from optuna import Study, Trial

from ablations.tuning.spaces import Space
from ablations.tuning.study import given, me
from reproduce.cells import Cell, override
from reproduce.errors import BadInput
from reproduce.execute import Pruned, execute
from reproduce.job import Observer
from reproduce.progress import make_progress
from reproduce.store import Store
from reproduce.train import prepare

WORST = 0.0
"""What a diverged trial is worth from the step on at which it diverged: metrics are percentages"""


class TrialFailed(Exception):
    """A trial without a result; the study goes on."""


class Watcher(Observer):
    """Tells a trial its intermediate metrics, and ends the run where the pruner says so."""

    def __init__(self, trial: Trial, steps: int) -> None:
        self.trial, self.steps = trial, steps

    def on_metric(self, step: int, value: float) -> None:
        self.trial.report(value, step)
        if step < self.steps and self.trial.should_prune():
            raise Pruned(f"pruned at step {step}: others were better by then")


class Objective:
    """What Optuna calls with each trial; the value is the metric at the end of the run."""

    def __init__(self, cell: Cell, space: Space, store: Store, study: Study, parent: str) -> None:
        self.cell, self.space, self.store = cell, space, store
        self.number = -1
        """Of the trial that is or was last at work"""
        self._tags = {"mlflow.parentRunId": parent, "study": study.study_name}

    def __call__(self, trial: Trial) -> float:
        """Raises:
        TrialFailed: no value; Optuna's `TrialPruned`, also for a run that diverged, which is then
            worth `WORST`; KeyboardInterrupt.
        """
        self.number = trial.number
        trial.set_user_attr("process", me())
        values = self.space.suggest(trial, given(trial))
        try:
            cell = trial_cell(self.cell, trial.number, values)
            job = prepare(cell)
        except BadInput as error:  # a value between the ends that the cell cannot take
            trial.set_user_attr("status", "refused")
            print(error)
            raise TrialFailed(str(error)) from error
        tags = self._tags | {"trial": str(trial.number)}
        with make_progress([cell]) as progress:
            watcher = Watcher(trial, cell.settings.steps)
            found, end = execute(cell, job, self.store, progress, tags, [watcher])
        trial.set_user_attr("status", end)
        trial.set_user_attr("mlflow_run_id", found["mlflow_run_id"])
        trial.set_user_attr("seconds", found["wall_s"])
        match end:
            case "finished":
                return float(found["metric"]["final"])
            case "diverged":
                # Pruned, not complete: what it scored before must not set the others' median.
                trial.set_user_attr("diverged_at", found["diverged_at"])
                trial.report(WORST, found["diverged_at"] + 1)
                raise optuna.TrialPruned
            case "pruned":
                raise optuna.TrialPruned
            case "killed":
                raise KeyboardInterrupt
        raise TrialFailed(f"trial {trial.number}: its run {found['mlflow_run_id']} failed")


def trial_cell(cell: Cell, number: int, values: dict[str, Any]) -> Cell:
    """The cell of a trial; the name of its run says which one."""
    return replace(override(cell, values), variant=f"tune:trial={number}", seeds=1)
