"""One trial: an ordinary run of the cell with other settings, told to Optuna as it goes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import optuna
from optuna import Study, Trial

from ablations.tuning.spaces import Space
from ablations.tuning.study import ASKED, me
from reproduce.cells import Cell, override
from reproduce.execute import Pruned, execute
from reproduce.job import Observer
from reproduce.progress import make_progress
from reproduce.store import Store
from reproduce.train import prepare

WORST = 0.0
"""What a diverged trial is worth: metrics are percentages"""


class Superfluous(Exception):
    """A trial that nobody asked for: the last one in the queue went to another process."""


class TrialFailed(Exception):
    """The run of a trial failed; the study goes on."""


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
        Superfluous, TrialFailed: no value; Optuna's `TrialPruned`, and KeyboardInterrupt.
        """
        if ASKED not in trial.user_attrs:
            raise Superfluous
        self.number = trial.number
        trial.set_user_attr("process", me())
        cell = trial_cell(self.cell, trial.number, self.space.suggest(trial))
        tags = self._tags | {"trial": str(trial.number)}
        with make_progress([cell]) as progress:
            watcher = Watcher(trial, cell.settings.steps)
            found, end = execute(cell, prepare(cell), self.store, progress, tags, [watcher])
        trial.set_user_attr("status", end)
        trial.set_user_attr("mlflow_run_id", found["mlflow_run_id"])
        match end:
            case "finished":
                return float(found["metric"]["final"])
            case "diverged":
                trial.set_user_attr("diverged_at", found["diverged_at"])
                return WORST
            case "pruned":
                raise optuna.TrialPruned
            case "killed":
                raise KeyboardInterrupt
        raise TrialFailed(f"trial {trial.number}: its run {found['mlflow_run_id']} failed")


def trial_cell(cell: Cell, number: int, values: dict[str, Any]) -> Cell:
    """The cell of a trial; the name of its run says which one."""
    return replace(override(cell, values), variant=f"tune:trial={number}", seeds=1)
